P=/tmp/root/groups; PYTHONPATH=$P/core:$P/proto:$P/client:$P/broker:$P/operator:$P/cli:$P/spark-on-k8s:$P exec /work/main/.venv/bin/"$@"
