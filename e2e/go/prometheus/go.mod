// The Prometheus of the end-to-end tests (see e2e/programs.py). Debian's does not know Kubernetes.
module millrace.dev/e2e/prometheus

go 1.25.0

require github.com/prometheus/prometheus v0.313.2
