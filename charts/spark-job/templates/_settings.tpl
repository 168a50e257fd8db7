{{- /* Spark's settings by name: how the job runs, and where the chart starts its pods, which these are. */ -}}
{{- define "job.settings" -}}
{{- $settings := dict
  "spark.kubernetes.executor.disableConfigMap" "true"
  "spark.driver.port" "7078"
  "spark.driver.blockManager.port" "7079"
  "spark.ui.enabled" "false"
  "spark.ui.showConsoleProgress" "false"
  "spark.python.unix.domain.socket.enabled" "true"
  "spark.sql.session.timeZone" "UTC"
  "spark.sql.parquet.outputTimestampType" "TIMESTAMP_MICROS"
  "spark.sql.adaptive.enabled" "false"
  "spark.sql.streaming.stateStore.providerClass" "org.apache.spark.sql.execution.streaming.state.RocksDBStateStoreProvider"
  "spark.decommission.enabled" "true"
  "spark.storage.decommission.enabled" "true"
  "spark.kubernetes.decommission.script" "/opt/millrace/decommission.sh"
-}}
{{- if ne .Values.submission "operator" }}
{{- $settings = merge $settings (dict
  "spark.app.name" .Release.Name
  "spark.master" "k8s://https://kubernetes.default.svc"
  "spark.kubernetes.container.image.pullPolicy" .Values.image.pullPolicy
  "spark.kubernetes.executor.podTemplateFile" "/opt/millrace/conf/executor.yaml"
  "spark.kubernetes.executor.request.cores" .Values.executor.cpu
  "spark.driver.memory" .Values.driver.memory
  "spark.executor.instances" .Values.executor.instances
  "spark.executor.cores" .Values.executor.cores
  "spark.executor.memory" .Values.executor.memory
  "spark.executor.memoryOverhead" .Values.executor.memoryOverhead
) }}
{{- end }}
{{- if eq .Values.submission "cluster" }}
{{- $settings = merge $settings (dict
  "spark.kubernetes.driver.request.cores" .Values.driver.cpu
  "spark.kubernetes.authenticate.driver.serviceAccountName" .Release.Name
  "spark.kubernetes.appKillPodDeletionGracePeriod" (printf "%vs" .Values.terminationGracePeriodSeconds)
  "spark.kubernetes.report.interval" "60s"
  "spark.driver.memoryOverhead" .Values.driver.memoryOverhead
) }}
{{- end }}
{{- if ne .Values.submission "client" }}
{{- /* Spark would make a NetworkPolicy that lets nobody reach the pages, and that takes further rights. */}}
{{- $_ := set $settings "spark.kubernetes.driver.pod.excludedFeatureSteps" "org.apache.spark.deploy.k8s.features.NetworkPolicyFeatureStep" }}
{{- end }}
{{- /* Not by merge, which takes a false for nothing. */}}
{{- range $name, $value := .Values.sparkConf }}{{ $_ := set $settings $name $value }}{{ end }}
{{- range $name, $value := $settings }}
{{ $name }}: {{ $value | toString | quote }}
{{- end }}
{{- end }}
