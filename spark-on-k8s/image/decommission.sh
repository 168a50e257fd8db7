#!/bin/bash
# What an executor's pod runs before it is ended: the executor takes no more tasks, hands over what it holds, and ends.
# Kubernetes waits for this program, for the pod's grace period at most.
set -euo pipefail

executor=$(cat /proc/1/task/1/children)
kill -PWR ${executor}
while kill -0 ${executor} 2>/dev/null; do sleep 0.2; done
