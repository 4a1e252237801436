{{- define "evaluator.name" -}}
{{- if contains .Chart.Name .Release.Name }}{{ .Release.Name | trunc 52 | trimSuffix "-" }}{{ else }}{{ printf "%s-%s" .Release.Name .Chart.Name | trunc 52 | trimSuffix "-" }}{{ end }}
{{- end }}

{{- define "evaluator.selector" -}}
app.kubernetes.io/name: {{ .Chart.Name }}
app.kubernetes.io/instance: {{ .Release.Name }}
{{- end }}

{{- define "evaluator.labels" -}}
{{ include "evaluator.selector" . }}
app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ .Release.Service }}
helm.sh/chart: {{ printf "%s-%s" .Chart.Name .Chart.Version }}
{{- end }}

{{- /* What the chart decides itself: ports, files and times that the rest of it relies on. `settings` may not contradict it. */}}
{{- define "evaluator.configuration" -}}
{{- $own := dict
  "listen" "0.0.0.0:50051"
  "state_dir" "/var/lib/kernelevo"
  "tls_certificate" "/etc/kernelevo/tls/tls.crt"
  "tls_key" "/etc/kernelevo/tls/tls.key"
  "token_file" "/etc/kernelevo/tokens/tokens.toml"
  "metrics" "0.0.0.0:9464"
  "health" "0.0.0.0:50052"
  "log_format" "json"
  "drain_s" .Values.drainSeconds }}
{{- range $name, $value := .Values.settings }}
{{- if hasKey $own $name }}{{ fail (printf "settings.%s is the chart's own" $name) }}{{ end }}
{{- end }}
[evaluator]
{{- range $name, $value := merge $own .Values.settings }}
{{ $name }} = {{ toJson $value }}
{{- end }}
{{- end }}
