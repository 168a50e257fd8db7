{{- define "job.labels" -}}
app.kubernetes.io/name: {{ .Chart.Name }}
app.kubernetes.io/instance: {{ .Release.Name }}
app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ .Release.Service }}
{{- end }}
{{- define "job.driver" -}}
app.kubernetes.io/instance: {{ .Release.Name }}
app.kubernetes.io/component: spark-driver
{{- end }}
{{- define "job.executor" -}}
app.kubernetes.io/instance: {{ .Release.Name }}
app.kubernetes.io/component: spark-executor
{{- end }}
{{- define "job.image" -}}
{{ .Values.image.repository }}:{{ .Values.image.tag | default .Chart.AppVersion }}
{{- end }}
{{- define "job.claim" -}}
{{ .Values.storage.existingClaim | default (printf "%s-data" .Release.Name) }}
{{- end }}
{{- /* What pods of driver and executors share. */ -}}
{{- define "job.pod" -}}
{{- with .Values.imagePullSecrets }}
imagePullSecrets:
  {{- range . }}
  - name: {{ . }}
  {{- end }}
{{- end }}
securityContext:
  runAsNonRoot: true
  runAsUser: 65532
  runAsGroup: 65532
  fsGroup: 65532
  # A volume with many files is not walked through each time.
  fsGroupChangePolicy: OnRootMismatch
  seccompProfile:
    type: RuntimeDefault
{{- if or .Values.nodeSelector .Values.zone }}
nodeSelector:
  {{- with .Values.zone }}
  topology.kubernetes.io/zone: {{ . }}
  {{- end }}
  {{- with .Values.nodeSelector }}
  {{- toYaml . | nindent 2 }}
  {{- end }}
{{- end }}
{{- with .Values.tolerations }}
tolerations: {{- toYaml . | nindent 2 }}
{{- end }}
{{- end }}
{{- define "job.environment" -}}
- name: MILLRACE_BOOTSTRAP
  value: {{ .Values.bootstrap }}
- name: MILLRACE_NAMESPACE
  {{- if .Values.topicNamespace }}
  value: {{ .Values.topicNamespace }}
  {{- else }}
  valueFrom:
    fieldRef:
      fieldPath: metadata.namespace
  {{- end }}
- name: MILLRACE_CLIENT_RACK
  {{- if .Values.zone }}
  value: {{ .Values.zone }}
  {{- else }}
  # Of Kubernetes 1.35 on, pods have their node's zone as a label; without, it is empty, and any replica is read.
  valueFrom:
    fieldRef:
      fieldPath: metadata.labels['topology.kubernetes.io/zone']
  {{- end }}
{{- end }}
{{- define "job.security" -}}
allowPrivilegeEscalation: false
readOnlyRootFilesystem: true
capabilities:
  drop: [ALL]
{{- end }}
{{- define "job.mebibytes" -}}
{{- if hasSuffix "g" (lower .) }}{{ mul 1024 (trimSuffix "g" (lower .) | atoi) }}{{ else }}{{ trimSuffix "m" (lower .) | atoi }}{{ end }}
{{- end }}
{{- define "job.annotations" -}}
prometheus.io/scrape: "true"
prometheus.io/port: "8099"
{{- with .Values.podAnnotations }}
{{ toYaml . }}
{{- end }}
{{- end }}
{{- /* What a driver's container has, whoever starts it. */ -}}
{{- define "job.container" -}}
ports:
  - name: driver
    containerPort: 7078
  - name: blocks
    containerPort: 7079
  - name: pages
    containerPort: 8099
{{- if not .Values.schedule }}
startupProbe:
  httpGet:
    path: /healthz
    port: pages
  periodSeconds: 2
  failureThreshold: 150
readinessProbe:
  httpGet:
    path: /healthz
    port: pages
  periodSeconds: 5
  timeoutSeconds: 5
livenessProbe:
  httpGet:
    path: /healthz
    port: pages
  periodSeconds: {{ div .Values.silentSecondsMax 2 }}
  timeoutSeconds: 10
  # A long micro-batch is no reason: one that would be broken off would only begin again.
  failureThreshold: 20
{{- end }}
# Its last words are the pod's status: `kubectl describe` shows them.
terminationMessagePolicy: FallbackToLogsOnError
securityContext:
  {{- include "job.security" . | nindent 2 }}
{{- end }}
{{- define "job.mounts" -}}
- name: data
  mountPath: /data
- name: tmp
  mountPath: /tmp
{{- end }}
{{- define "job.volumes" -}}
- name: data
  persistentVolumeClaim:
    claimName: {{ include "job.claim" . }}
- name: tmp
  emptyDir: {}
{{- end }}
{{- /* The driver's pod of the Deployment and of the CronJob, in client mode. */ -}}
{{- define "job.template" -}}
metadata:
  labels:
    {{- include "job.labels" . | nindent 4 }}
    app.kubernetes.io/component: spark-driver
  annotations:
    {{- /* A change of the settings is a change of the pod. */}}
    millrace.dev/settings: {{ include (print $.Template.BasePath "/settings.yaml") . | sha256sum | trunc 16 | quote }}
    {{- include "job.annotations" . | nindent 4 }}
spec:
  serviceAccountName: {{ .Release.Name }}
  {{- include "job.pod" . | nindent 2 }}
  {{- if .Values.schedule }}
  restartPolicy: Never
  {{- end }}
  terminationGracePeriodSeconds: {{ .Values.terminationGracePeriodSeconds }}
  containers:
    - name: driver
      image: {{ include "job.image" . }}
      imagePullPolicy: {{ .Values.image.pullPolicy }}
      # Python and not spark-submit: it hears SIGTERM, and ends between two micro-batches.
      args:
        - python
        - {{ .Values.job.file }}
        {{- range .Values.job.arguments }}
        - {{ . | quote }}
        {{- end }}
      env:
        {{- include "job.environment" . | nindent 8 }}
        - name: POD_NAME
          valueFrom:
            fieldRef:
              fieldPath: metadata.name
        - name: POD_NAMESPACE
          valueFrom:
            fieldRef:
              fieldPath: metadata.namespace
        - name: POD_IP
          valueFrom:
            fieldRef:
              fieldPath: status.podIP
        - name: SPARK_IMAGE
          value: {{ include "job.image" . }}
        - name: SPARK_CONF_DIR
          value: /opt/millrace/conf
        # Executors find the driver by its address: a name may stand in DNS caches with that of the driver before.
        - name: PYSPARK_SUBMIT_ARGS
          value: >-
            --conf spark.driver.host=$(POD_IP)
            --conf spark.driver.bindAddress=0.0.0.0
            --conf spark.kubernetes.namespace=$(POD_NAMESPACE)
            --conf spark.kubernetes.container.image=$(SPARK_IMAGE)
            --conf spark.kubernetes.driver.pod.name=$(POD_NAME)
            pyspark-shell
      resources:
        requests:
          cpu: {{ .Values.driver.cpu }}
          memory: {{ add (include "job.mebibytes" .Values.driver.memory) (include "job.mebibytes" .Values.driver.memoryOverhead) }}Mi
        limits:
          memory: {{ add (include "job.mebibytes" .Values.driver.memory) (include "job.mebibytes" .Values.driver.memoryOverhead) }}Mi
      {{- include "job.container" . | nindent 6 }}
      volumeMounts:
        - name: settings
          mountPath: /opt/millrace/conf
        {{- include "job.mounts" . | nindent 8 }}
  volumes:
    - name: settings
      configMap:
        name: {{ .Release.Name }}
    {{- include "job.volumes" . | nindent 4 }}
{{- end }}
{{- /* The pod that submits a job in cluster mode; Spark makes the driver's. */ -}}
{{- define "job.submitter" -}}
metadata:
  labels:
    {{- include "job.labels" . | nindent 4 }}
    app.kubernetes.io/component: spark-submit
spec:
  serviceAccountName: {{ .Release.Name }}
  {{- include "job.pod" . | nindent 2 }}
  restartPolicy: Never
  containers:
    - name: submit
      image: {{ include "job.image" . }}
      imagePullPolicy: {{ .Values.image.pullPolicy }}
      args:
        - /opt/spark/bin/spark-submit
        - --deploy-mode=cluster
        - --conf=spark.kubernetes.namespace=$(POD_NAMESPACE)
        - --conf=spark.kubernetes.container.image=$(SPARK_IMAGE)
        - local://{{ .Values.job.file }}
        {{- range .Values.job.arguments }}
        - {{ . | quote }}
        {{- end }}
      env:
        - name: POD_NAMESPACE
          valueFrom:
            fieldRef:
              fieldPath: metadata.namespace
        - name: SPARK_IMAGE
          value: {{ include "job.image" . }}
        - name: SPARK_CONF_DIR
          value: /opt/millrace/conf
      resources:
        requests:
          cpu: 100m
          memory: 512Mi
        limits:
          memory: 512Mi
      terminationMessagePolicy: FallbackToLogsOnError
      securityContext:
        {{- include "job.security" . | nindent 8 }}
      volumeMounts:
        - name: settings
          mountPath: /opt/millrace/conf
        - name: tmp
          mountPath: /tmp
  volumes:
    - name: settings
      configMap:
        name: {{ .Release.Name }}
    - name: tmp
      emptyDir: {}
{{- end }}
{{- define "job.settings" -}}
{{- $conf := dict
  "spark.app.name" .Release.Name
  "spark.master" "k8s://https://kubernetes.default.svc"
  "spark.kubernetes.container.image.pullPolicy" .Values.image.pullPolicy
  "spark.kubernetes.executor.podTemplateFile" "/opt/millrace/conf/executor.yaml"
  "spark.kubernetes.executor.podTemplateContainerName" "executor"
  "spark.kubernetes.executor.disableConfigMap" "true"
  "spark.kubernetes.executor.request.cores" .Values.executor.cpu
  "spark.driver.port" "7078"
  "spark.driver.blockManager.port" "7079"
  "spark.driver.memory" .Values.driver.memory
  "spark.executor.instances" .Values.executor.instances
  "spark.executor.cores" .Values.executor.cores
  "spark.executor.memory" .Values.executor.memory
  "spark.executor.memoryOverhead" .Values.executor.memoryOverhead
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
{{- if eq .Values.submission "cluster" }}
{{- $conf = merge (dict
  "spark.kubernetes.driver.podTemplateFile" "/opt/millrace/conf/driver.yaml"
  "spark.kubernetes.driver.podTemplateContainerName" "driver"
  "spark.kubernetes.driver.request.cores" .Values.driver.cpu
  "spark.kubernetes.authenticate.driver.serviceAccountName" .Release.Name
  "spark.driver.memoryOverhead" .Values.driver.memoryOverhead
) $conf }}
{{- end }}
{{- /* Not by merge, which takes a false for nothing. */}}
{{- range $name, $value := .Values.sparkConf }}{{ $_ := set $conf $name $value }}{{ end }}
{{- range $name, $value := $conf -}}
{{ $name }} {{ $value }}
{{ end }}
{{- end }}
