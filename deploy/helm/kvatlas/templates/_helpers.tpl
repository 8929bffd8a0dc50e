{{- define "kvatlas.name" -}}
{{- if contains .Chart.Name .Release.Name }}{{ .Release.Name }}{{ else }}{{ .Release.Name }}-{{ .Chart.Name }}{{ end -}}
{{- end }}

{{- define "kvatlas.selector" -}}
app.kubernetes.io/name: kvatlas
app.kubernetes.io/instance: {{ .Release.Name }}
{{- end }}

{{- define "kvatlas.labels" -}}
{{ include "kvatlas.selector" . }}
app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ .Release.Service }}
helm.sh/chart: {{ .Chart.Name }}-{{ .Chart.Version | replace "+" "_" }}
{{- end }}

{{- define "kvatlas.redisSelector" -}}
app.kubernetes.io/name: kvatlas-redis
app.kubernetes.io/instance: {{ .Release.Name }}
{{- end }}
