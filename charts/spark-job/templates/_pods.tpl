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
  {{- with .Values.user }}
  runAsUser: {{ int . }}
  {{- end }}
  {{- with .Values.group }}
  runAsGroup: {{ int . }}
  fsGroup: {{ int . }}
  {{- end }}
  # Otherwise Kubernetes would change the owner of every file of the volume at each start.
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
  # Since Kubernetes 1.35 pods have their node's zone as a label; before, it is empty, and executors read any replica.
  valueFrom:
    fieldRef:
      fieldPath: metadata.labels['topology.kubernetes.io/zone']
  {{- end }}
{{- if .Values.tls.authorities }}
- name: MILLRACE_TLS_CA_FILE
  value: /var/run/millrace/ca.crt
{{- end }}
{{- if .Values.access.audience }}
- name: MILLRACE_TOKEN_FILE
  value: /var/run/millrace/token
{{- end }}
{{- end }}
{{- define "job.security" -}}
allowPrivilegeEscalation: false
readOnlyRootFilesystem: true
capabilities:
  drop: [ALL]
{{- end }}
{{- define "job.annotations" -}}
prometheus.io/scrape: "true"
prometheus.io/port: "8099"
{{- if .Values.pages.tlsSecret }}
prometheus.io/scheme: "https"
{{- end }}
{{- with .Values.podAnnotations }}
{{ toYaml . }}
{{- end }}
{{- end }}
{{- /* What a driver's container has, whoever starts it. */ -}}
{{- define "job.container" -}}
ports:
  - name: driver
    containerPort: 7078
    protocol: TCP
  - name: blocks
    containerPort: 7079
    protocol: TCP
  - name: pages
    containerPort: 8099
    protocol: TCP
{{- if not .Values.schedule }}
startupProbe:
  httpGet:
    path: /healthz
    port: pages
    {{- if .Values.pages.tlsSecret }}
    scheme: HTTPS
    {{- end }}
  periodSeconds: 2
  failureThreshold: 150
readinessProbe:
  httpGet:
    path: /healthz
    port: pages
    {{- if .Values.pages.tlsSecret }}
    scheme: HTTPS
    {{- end }}
  periodSeconds: 5
  timeoutSeconds: 5
livenessProbe:
  httpGet:
    path: /healthz
    port: pages
    {{- if .Values.pages.tlsSecret }}
    scheme: HTTPS
    {{- end }}
  periodSeconds: {{ div .Values.silentSecondsMax 2 }}
  timeoutSeconds: 10
  # A long micro-batch is no reason for a restart: it would only begin again.
  failureThreshold: 20
{{- end }}
# The driver's last log lines become the pod's status: `kubectl describe` shows them.
terminationMessagePolicy: FallbackToLogsOnError
securityContext:
  {{- include "job.security" . | nindent 2 }}
{{- end }}
{{- /* What a driver has beside: how long it may be silent and take to end, and its pages. */ -}}
{{- define "job.driverEnvironment" -}}
- name: MILLRACE_SILENT_SECONDS_MAX
  value: {{ int .Values.silentSecondsMax | quote }}
- name: MILLRACE_GRACE_SECONDS
  value: {{ int .Values.terminationGracePeriodSeconds | quote }}
{{- if .Values.pages.tlsSecret }}
- name: MILLRACE_PAGES_TLS_CERTIFICATE_FILE
  value: /var/run/millrace-pages/tls.crt
- name: MILLRACE_PAGES_TLS_KEY_FILE
  value: /var/run/millrace-pages/tls.key
{{- end }}
{{- if .Values.pages.tokenSecret }}
- name: MILLRACE_PAGES_TOKEN_FILE
  value: /var/run/millrace-pages/token
{{- end }}
{{- end }}
{{- define "job.pagesMounts" -}}
{{- if .Values.pages.tlsSecret }}
- name: pages
  mountPath: /var/run/millrace-pages
  readOnly: true
{{- end }}
{{- end }}
{{- define "job.pagesVolumes" -}}
{{- if .Values.pages.tlsSecret }}
- name: pages
  projected:
    sources:
      - secret:
          name: {{ .Values.pages.tlsSecret }}
          items:
            - key: tls.crt
              path: tls.crt
            - key: tls.key
              path: tls.key
      {{- with .Values.pages.tokenSecret }}
      - secret:
          name: {{ . }}
          items:
            - key: token
              path: token
      {{- end }}
{{- end }}
{{- end }}
{{- define "job.mounts" -}}
- name: data
  mountPath: /data
- name: tmp
  mountPath: /tmp
{{- if or .Values.tls.authorities .Values.access.audience }}
- name: brokers
  mountPath: /var/run/millrace
  readOnly: true
{{- end }}
{{- end }}
{{- define "job.volumes" -}}
- name: data
  persistentVolumeClaim:
    claimName: {{ include "job.claim" . }}
- name: tmp
  emptyDir: {}
{{- if or .Values.tls.authorities .Values.access.audience }}
# The kubelet renews both, and clients read them again: no pod restarts.
- name: brokers
  projected:
    sources:
      {{- with .Values.tls.authorities }}
      - configMap:
          name: {{ . }}
          items:
            - key: ca.crt
              path: ca.crt
      {{- end }}
      {{- with .Values.access.audience }}
      # For these brokers alone: nobody can act by it at the API server.
      - serviceAccountToken:
          path: token
          audience: {{ . }}
          expirationSeconds: {{ int $.Values.access.tokenSeconds }}
      {{- end }}
{{- end }}
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
      # Python instead of spark-submit: it handles SIGTERM, and ends between two micro-batches.
      args:
        - python
        - {{ .Values.job.file }}
        {{- range .Values.job.arguments }}
        - {{ . | quote }}
        {{- end }}
      env:
        {{- include "job.environment" . | nindent 8 }}
        {{- include "job.driverEnvironment" . | nindent 8 }}
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
        # Executors use the driver's address: DNS caches may still map its name to the previous driver.
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
        {{- with include "job.pagesMounts" . | trim }}{{ . | nindent 8 }}{{ end }}
  volumes:
    - name: settings
      configMap:
        name: {{ .Release.Name }}
    {{- include "job.volumes" . | nindent 4 }}
    {{- with include "job.pagesVolumes" . | trim }}{{ . | nindent 4 }}{{ end }}
{{- end }}
{{- /* The pod that submits a job in cluster mode; Spark makes the driver's, which lives as long as this one. */ -}}
{{- define "job.submitter" -}}
metadata:
  labels:
    {{- include "job.labels" . | nindent 4 }}
    app.kubernetes.io/component: spark-submit
  annotations:
    millrace.dev/settings: {{ include (print $.Template.BasePath "/settings.yaml") . | sha256sum | trunc 16 | quote }}
spec:
  serviceAccountName: {{ .Release.Name }}
  {{- include "job.pod" . | nindent 2 }}
  {{- if .Values.schedule }}
  restartPolicy: Never
  {{- end }}
  containers:
    - name: submit
      image: {{ include "job.image" . }}
      imagePullPolicy: {{ .Values.image.pullPolicy }}
      args:
        - /opt/millrace/submit.sh
        - /opt/millrace/conf/driver.yaml
        - --conf=spark.kubernetes.container.image=$(SPARK_IMAGE)
        - local://{{ .Values.job.file }}
        {{- range .Values.job.arguments }}
        - {{ . | quote }}
        {{- end }}
      env:
        - name: DRIVER
          value: {{ .Release.Name }}-driver
        - name: POD_NAME
          valueFrom:
            fieldRef:
              fieldPath: metadata.name
        - name: POD_UID
          valueFrom:
            fieldRef:
              fieldPath: metadata.uid
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
{{- /* The driver's pod where Spark makes it. */ -}}
{{- define "job.driverPod" -}}
metadata:
  labels:
    {{- include "job.labels" . | nindent 4 }}
    app.kubernetes.io/component: spark-driver
  annotations:
    {{- include "job.annotations" . | nindent 4 }}
  {{- if eq .Values.submission "cluster" }}
  # The pod that submits the job; it fills this in.
  ownerReferences:
    - apiVersion: v1
      kind: Pod
      name: POD_NAME
      uid: POD_UID
  {{- end }}
spec:
  {{- if .Values.access.audience }}
  serviceAccountName: {{ .Release.Name }}
  {{- end }}
  {{- include "job.pod" . | nindent 2 }}
  terminationGracePeriodSeconds: {{ .Values.terminationGracePeriodSeconds }}
  containers:
    - name: spark-kubernetes-driver
      env:
        {{- include "job.environment" . | nindent 8 }}
        {{- include "job.driverEnvironment" . | nindent 8 }}
      {{- include "job.container" . | nindent 6 }}
      volumeMounts:
        {{- include "job.mounts" . | nindent 8 }}
        {{- with include "job.pagesMounts" . | trim }}{{ . | nindent 8 }}{{ end }}
  volumes:
    {{- include "job.volumes" . | nindent 4 }}
    {{- with include "job.pagesVolumes" . | trim }}{{ . | nindent 4 }}{{ end }}
{{- end }}
{{- define "job.executorPod" -}}
metadata:
  labels:
    {{- include "job.labels" . | nindent 4 }}
    app.kubernetes.io/component: spark-executor
spec:
  {{- include "job.pod" . | nindent 2 }}
  {{- if .Values.access.audience }}
  # Brokers know the job by it.
  serviceAccountName: {{ .Release.Name }}
  {{- end }}
  # It does not use the API server.
  automountServiceAccountToken: false
  containers:
    - name: spark-kubernetes-executor
      env:
        {{- include "job.environment" . | nindent 8 }}
      terminationMessagePolicy: FallbackToLogsOnError
      securityContext:
        {{- include "job.security" . | nindent 8 }}
      volumeMounts:
        {{- include "job.mounts" . | nindent 8 }}
  volumes:
    {{- include "job.volumes" . | nindent 4 }}
{{- end }}
