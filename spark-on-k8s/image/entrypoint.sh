#!/bin/bash
# What a pod of Spark runs: `driver ...` and `executor`, as Spark's Kubernetes scheduler asks for them, or any other command.
#
# PySpark's package has no such program. This one differs from that of Spark's own image in one point: the driver of a job
# in Python is Python, which starts the JVM, and not the other way round. So SIGTERM, as Kubernetes ends pods, reaches the
# job, which ends between two micro-batches (`millrace.spark.stopping`); the JVM alone would stop in the middle of one.
set -euo pipefail

# Any user may run this, and Java wants a name for it.
if ! getent passwd "$(id -u)" >/dev/null; then
    echo "spark:x:$(id -u):$(id -g)::/tmp:/usr/sbin/nologin" >/tmp/.passwd
    export LD_PRELOAD=libnss_wrapper.so NSS_WRAPPER_PASSWD=/tmp/.passwd NSS_WRAPPER_GROUP=/etc/group
fi
export HOME=/tmp

case "${1:-}" in
driver)
    shift
    # Spark would give executors the name of a Service, which DNS knows only once the driver is ready.
    settings=(--deploy-mode client
        --conf "spark.driver.bindAddress=$SPARK_DRIVER_BIND_ADDRESS" --conf "spark.driver.host=$SPARK_DRIVER_BIND_ADDRESS")
    while [ "${1:-}" = --properties-file ] || [ "${1:-}" = --class ]; do
        [ "$1" = --properties-file ] && settings+=(--properties-file "$2")
        main=$2
        shift 2
    done
    if [ "$main" != org.apache.spark.deploy.PythonRunner ]; then
        exec "$SPARK_HOME/bin/spark-submit" "${settings[@]}" --class "$main" "$@"
    fi
    export PYSPARK_SUBMIT_ARGS="${settings[*]} pyspark-shell"
    job=${1#local://}
    shift
    exec "$PYSPARK_PYTHON" "$job" "$@"
    ;;
executor)
    options=()
    while IFS= read -r -d '' pair; do
        [[ $pair == SPARK_JAVA_OPT_* ]] && options+=("${pair#*=}")
    done < <(env --null)
    classes=${SPARK_CONF_DIR:+$SPARK_CONF_DIR:}${SPARK_EXTRA_CLASSPATH:+$SPARK_EXTRA_CLASSPATH:}$SPARK_HOME/jars/*
    exec java "${options[@]}" "-Xms$SPARK_EXECUTOR_MEMORY" "-Xmx$SPARK_EXECUTOR_MEMORY" -cp "$classes" \
        org.apache.spark.scheduler.cluster.k8s.KubernetesExecutorBackend \
        --driver-url "$SPARK_DRIVER_URL" --executor-id "$SPARK_EXECUTOR_ID" --cores "$SPARK_EXECUTOR_CORES" \
        --app-id "$SPARK_APPLICATION_ID" --hostname "$SPARK_EXECUTOR_POD_IP" \
        --resourceProfileId "$SPARK_RESOURCE_PROFILE_ID" --podName "$SPARK_EXECUTOR_POD_NAME"
    ;;
*) exec "$@" ;;
esac
