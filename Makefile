# Every target does its own set-up: a clone, Python 3.11 and make are all that is needed.
# `make` lists the targets.

.DEFAULT_GOAL := help
SHELL := /bin/sh
PYTHON_RUN := .venv/bin/python
INSTALL := @sh requirements/install.sh

.PHONY: abuse kafka-suites help crds dashboards manifests setup check lint test test-requirements test-integration cluster-parts test-spark api-server go-client helm sim mutants faults nightly fuzz bench figure figures demo cluster-up cluster-down e2e e2e-faults e2e-spark-kills dist release proto docs pictures lock

help: ## List the targets
	@awk -F ':.*## ' '/^[a-z0-9-]+:.*## / { printf "  make %-12s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

setup: ## Make .venv with the locked requirements and this checkout, for developers
	$(INSTALL) runtime dev operator

demo: ## The main job: a year of real flights through three brokers, then through Spark; a leader is killed on the way
	$(INSTALL) runtime demo spark
	@sh requirements/install.sh java || [ $$? -eq 3 ] # Where nothing may be installed the pipeline says what is missing.
	@$(PYTHON_RUN) -m demo.flights
	@$(PYTHON_RUN) -m demo.pipeline

# They run with few epochs, too.
TESTS_OF_TRANSACTIONS := $(wildcard $(addprefix tests/integration/,test_transactions.py test_exactly_once.py \
  test_hostile_transactions.py test_reading_transactions.py client/test_*transactions*.py client/test_exactly_once.py))
# Rates and waits of clients: these tests need the machine for themselves.
TESTS_ALONE := tests/integration/test_quotas.py tests/integration/test_large_calls.py
# Printed after each layer, for whoever adds a test.
SLOWEST := --durations=40 --durations-min=2

test: setup ## Everything that `make check` does, then all tests but the nightly ones, the fastest layer first
	@$(MAKE) --no-print-directory --jobs=2 lint api-server go-client helm test-requirements
	@$(PYTHON_RUN) -m pytest $(SLOWEST) --numprocesses=auto tests/unit tests/arch tests/scenario tests/model tests/sim tests/fuzz
	@$(MAKE) --no-print-directory --jobs=2 test-integration cluster-parts
	@$(PYTHON_RUN) -m pytest $(SLOWEST) $(TESTS_ALONE)
	@$(PYTHON_RUN) -m pytest $(SLOWEST) e2e/tests/test_first_cluster.py

# Downloads, while the others build. mypy must not see half of a package.
test-requirements: lint
	$(INSTALL) bench spark demo java faults cluster prometheus browser

# These tests wait for most of their time: more of them than there are processors run at once.
test-integration:
	@$(PYTHON_RUN) -m pytest $(SLOWEST) --numprocesses=3 --dist=loadfile --no-loadscope-reorder \
		tests/interop tests/integration $(addprefix --ignore=,$(TESTS_ALONE))

# Beside these tests, after them in line. Where it fails, the test of the cluster says so.
cluster-parts:
	-@nice -n 10 $(PYTHON_RUN) -m e2e.cluster build

test-spark: setup ## The tests of Spark's data source and of its jobs alone
	$(INSTALL) spark demo java
	@$(PYTHON_RUN) -m pytest -m '' tests/unit/spark tests/integration/spark

api-server: setup ## Build kube-apiserver and etcd for the tests, once, into the user's cache
	@$(PYTHON_RUN) -m tests.api_server.binaries

go-client: setup ## Build the client and the DRPC server in Go for the tests, once, into the user's cache
	@$(PYTHON_RUN) -m tests.interop.client_program

helm: setup ## Build helm for the tests, once, into the user's cache
	@$(PYTHON_RUN) -m e2e.programs helm

cluster-up: setup ## Start a Kubernetes of three nodes with this checkout's image: CONTRIBUTING.md, "A Kubernetes of your own"
	$(INSTALL) cluster
	@$(PYTHON_RUN) -m e2e.cluster up

cluster-down: setup ## Remove it, and all that it has made but the caches
	@$(PYTHON_RUN) -m e2e.cluster down

e2e: setup ## All end-to-end tests, on the cluster of `make cluster-up`, or on one for them alone
	$(INSTALL) cluster demo
	@$(PYTHON_RUN) -m pytest --verbose e2e/tests

e2e-faults: setup ## Break a real Kubernetes under load, about half an hour a round: docs/kubernetes-faults.md (ARGS='--count 2')
	$(INSTALL) cluster
	@$(PYTHON_RUN) -m e2e.faults $(ARGS)

e2e-spark-kills: setup ## Kill all that a Spark job needs which writes topics exactly once (ARGS='--rounds 5', 14 kills each)
	$(INSTALL) runtime bench spark demo operator cluster
	@$(PYTHON_RUN) -m bench.figure spark_k8s_exactly_once $(or $(ARGS),--rounds 1)

check: lint ## Format, lint, types, import direction, layout: less than a minute
	@$(PYTHON_RUN) -m pytest --quiet tests/arch

sim: setup ## Simulate a cluster under faults: make sim SEED=8231 (ARGS='--seeds 100 --minutes 10')
	@$(PYTHON_RUN) -m tests.sim --seed $(or $(SEED),1) $(ARGS)

faults: setup ## Break real brokers under load: make faults (ARGS='--count 10', '--faults F02,F11', '--seconds 600')
	$(INSTALL) faults bench
	@$(PYTHON_RUN) -m tests.faults --seed $(or $(SEED),1) $(ARGS)

abuse: setup ## Attack a real broker in all ways that are known, a table of what others notice: make abuse (ARGS='--attacks h2_pings,tokens_drpc')
	@$(PYTHON_RUN) -m tests.abuse $(ARGS)

kafka-suites: setup ## Suites that nobody here wrote, against `millrace up --kafka`: make kafka-suites (ARGS='--short', 'kcat franz-go')
	$(INSTALL) runtime bench spark java suites
	@$(PYTHON_RUN) -m tests.suites run $(ARGS)

mutants: setup ## Leave out one rule of the product after another: the simulator must notice (ARGS='P13 --minutes 2')
	@$(PYTHON_RUN) -m tests.sim mutants $(ARGS)

# Bounded: about six hours on two cores. Every part ends with an error when something is broken.
nightly: setup api-server helm ## All night: long tests, scenarios, seeds, mutants, real faults, hours of simulated clusters, others' suites
	$(INSTALL) runtime bench faults spark demo java cluster prometheus browser suites
	@$(PYTHON_RUN) -m pytest -m nightly tests
	@PYTHONPATH=tests/fakes/few_epochs $(PYTHON_RUN) -m pytest -m '' $(TESTS_OF_TRANSACTIONS)
	@$(PYTHON_RUN) -m e2e.other_debian trixie sh -c 'make --no-print-directory setup && .venv/bin/python -m pytest tests/unit tests/arch'
	@FUZZ_SECONDS=60 $(PYTHON_RUN) -m pytest --numprocesses=auto tests/fuzz
	@$(PYTHON_RUN) -m tests.sim scenarios
	@$(PYTHON_RUN) -m tests.sim --seed $(or $(SEED),$(shell date +%Y%m%d)000) --seeds 300 --minutes 5
	@$(PYTHON_RUN) -m tests.sim mutants --minutes 30
	@$(PYTHON_RUN) -m tests.faults --seed $(or $(SEED),1) --count 100 --seconds 3600
	@$(PYTHON_RUN) -m bench.figure sim_hours $(ARGS)
	@$(PYTHON_RUN) -m tests.suites check
	@$(PYTHON_RUN) -m tests.suites run

fuzz: setup ## Look for bytes that break a decoder or the authorizer, each target for SECONDS (60): make fuzz SECONDS=600
	@FUZZ_SECONDS=$(or $(SECONDS),60) $(PYTHON_RUN) -m pytest --verbose --numprocesses=auto tests/fuzz

lint: setup
	@$(PYTHON_RUN) -m ruff format --check --quiet . || { echo 'Run: .venv/bin/ruff format .' >&2; exit 1; }
	@$(PYTHON_RUN) -m ruff check --quiet .
	@$(PYTHON_RUN) -m mypy

bench: ## Side by side with Apache Kafka: table, JSON and picture in docs/bench
	$(INSTALL) runtime bench
	@$(PYTHON_RUN) -m bench.side_by_side $(ARGS)

ON_KUBERNETES := cluster_ready topic_ready topics_500 rolling_restart pod_kill apiserver_outage rotation operator_idle \
  e2e_faults bad_resources $(SPARK_ON_KUBERNETES)
SPARK_ON_KUBERNETES := spark_k8s_start spark_k8s_kills spark_k8s_exactly_once spark_k8s_recovery
WATCHED := alerts dashboards
OF_TESTS := fuzz kafka_suites

figure: ## Measure one figure: make figure NAME=produce_100b (ARGS='--rounds 1 --seconds 2' for a quick look)
	$(INSTALL) runtime bench $(if $(filter spark_%,$(NAME)),spark demo) \
	  $(if $(filter $(ON_KUBERNETES),$(NAME)),dev operator cluster) \
	  $(if $(filter $(WATCHED),$(NAME)),dev operator prometheus faults) \
	  $(if $(filter $(OF_TESTS),$(NAME)),dev operator spark java suites)
	@$(PYTHON_RUN) -m bench.figure $(NAME) $(ARGS)

figures: ## Measure all figures, write docs/bench/figures.json and its table
	$(INSTALL) runtime bench spark demo dev operator cluster prometheus faults java suites
	@$(PYTHON_RUN) -m bench.run_figures $(ARGS)

proto: setup ## Generate the Python stubs from proto/millrace/proto/v1/*.proto
	@$(PYTHON_RUN) -m grpc_tools.protoc -I proto --python_out=proto --pyi_out=proto \
	  --grpc_python_out=proto proto/millrace/proto/v1/*.proto

DIST := dist

dist: setup ## Build wheel, sdist and bill of materials into dist; the same bytes from the same commit
	@rm -rf '$(DIST)'
	@$(PYTHON_RUN) -m hatchling build -d '$(DIST)' >/dev/null
	@$(PYTHON_RUN) -m tests.releases.materials '$(DIST)'

release: dist ## On the commit that is tagged: build it, and keep in tests/data what later releases are tested with
	@$(PYTHON_RUN) -m tests.releases '$(DIST)'/*.whl

docs: setup ## Write docs/api.md, configuration.md, events.md, metrics.md, spark-options.md and parts of safety.md from the code
	@$(PYTHON_RUN) -m docs.generate

pictures: setup ## Take the pictures of docs/pictures anew, from real brokers: dashboards, web page, millrace top
	$(INSTALL) bench browser node prometheus
	@$(PYTHON_RUN) -m docs.screen_pictures
	@$(PYTHON_RUN) -m dashboards.pictures $(ARGS)

manifests: setup ## Write charts/kustomize, and what the chart is held against, by helm from the chart
	@$(PYTHON_RUN) -m charts.generate

dashboards: setup ## Write Grafana's dashboards and Prometheus's rules from their values
	@$(PYTHON_RUN) -m dashboards.generate

crds: setup ## Write the definitions of Cluster, Topic and Quota from the operator's types
	@$(PYTHON_RUN) -m crds.generate

# One resolution of everything first, so that the groups agree on versions. Present pins are kept; UPGRADE=1 renews them.
LOCK := $(PYTHON_RUN) -m uv pip compile --quiet --universal --python-version 3.11 --generate-hashes \
  --no-annotate --custom-compile-command 'make lock'
GROUPS := build dev bench demo operator spark go lock

lock: ## Renew requirements/*.txt from pyproject.toml; UPGRADE=1 takes the newest versions
	$(INSTALL) runtime lock
	@cat requirements/*.txt > .venv/all.txt
	@$(LOCK) $(if $(UPGRADE),--upgrade) $(GROUPS:%=--group %) pyproject.toml -o .venv/all.txt
	@$(LOCK) -c .venv/all.txt pyproject.toml -o requirements/runtime.txt
	@for group in $(GROUPS); do $(LOCK) -c .venv/all.txt --group $$group -o requirements/$$group.txt || exit 1; done
