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
{{- define "job.mebibytes" -}}
{{- if hasSuffix "g" (lower .) }}{{ mul 1024 (trimSuffix "g" (lower .) | atoi) }}{{ else }}{{ trimSuffix "m" (lower .) | atoi }}{{ end }}
{{- end }}
