#!/bin/bash
# Runs a job in cluster mode, and ends as its driver ends: submit.sh TEMPLATE ARGUMENT..., the arguments as spark-submit's.
#
# A checkpoint has one writer. So the driver has a name that no two pods can have, and one that was left is ended first. It is
# owned by this pod: Kubernetes ends it when this pod goes, however it goes.
# Environment: DRIVER is the driver's pod, POD_NAME, POD_UID and POD_NAMESPACE are of this one.
set -euo pipefail

submit=$SPARK_HOME/bin/spark-submit
status() { "$submit" --status "$POD_NAMESPACE:$DRIVER" 2>&1; }

"$submit" --kill "$POD_NAMESPACE:$DRIVER" || true
# On a node that is gone it may still run: then this waits until somebody says that it does not.
while status | grep -q 'pod name:'; do echo "waiting for the end of the pod $DRIVER"; done

sed "s/POD_NAME/$POD_NAME/; s/POD_UID/$POD_UID/" "$1" >/tmp/driver.yaml
"$submit" --deploy-mode cluster \
    --conf "spark.kubernetes.namespace=$POD_NAMESPACE" \
    --conf "spark.kubernetes.driver.pod.name=$DRIVER" \
    --conf spark.kubernetes.driver.podTemplateFile=/tmp/driver.yaml \
    "${@:2}"

# spark-submit itself ends well, however the driver has ended.
status | grep -q 'phase: Succeeded' || {
    echo "error: the driver has failed: kubectl describe pod $DRIVER says why" >&2
    exit 1
}
