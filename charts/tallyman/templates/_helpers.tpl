{{- define "tallyman.labels" -}}
app.kubernetes.io/name: tallyman
app.kubernetes.io/instance: {{ .Release.Name | quote }}
app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ .Release.Service }}
helm.sh/chart: {{ printf "%s-%s" .Chart.Name .Chart.Version | replace "+" "_" }}
{{- end }}

{{- define "tallyman.selector" -}}
app.kubernetes.io/name: tallyman
app.kubernetes.io/component: manager
{{- end }}

{{- /* The reference of an image: list of its values and the root. */}}
{{- define "tallyman.image" -}}
{{- $image := index . 0 -}}
{{- $root := index . 1 -}}
{{ $image.repository }}:{{ $image.tag | default $root.Chart.AppVersion }}{{ with $image.digest }}@{{ . }}{{ end }}
{{- end }}

{{- /* The role of a kind that is generated from the code. */}}
{{- define "tallyman.rules" -}}
{{- $kind := index . 0 -}}
{{- $root := index . 1 -}}
{{- range $text := $root.Files.Get "generated/role.yaml" | splitList "\n---\n" }}
{{- $role := fromYaml $text }}
{{- if eq $role.kind $kind }}
{{- range $role.rules }}
{{- /* Without injection there is no webhook to keep. */}}
{{- if or $root.Values.injection.enabled (not (has "admissionregistration.k8s.io" .apiGroups)) }}
{{ list . | toYaml }}
{{- end }}
{{- end }}
{{- end }}
{{- end }}
{{- end }}

{{- /*
What the schema cannot refuse without showing a URL, and so its password.
*/}}
{{- define "tallyman.check" -}}
{{- $url := "^((rediss?([+](cluster|sentinel))?|unix)://.|$)" -}}
{{- if not (regexMatch $url .Values.store.url) }}
{{- fail "store.url must begin with redis://, rediss://, unix://, redis+cluster://, rediss+cluster://, redis+sentinel:// or rediss+sentinel://" }}
{{- end }}
{{- if not (regexMatch $url .Values.injection.store.url) }}
{{- fail "injection.store.url must be a URL such as redis://redis.tallyman-system:6379" }}
{{- end }}
{{- if regexMatch "@|username|password" .Values.injection.store.url }}
{{- fail "injection.store.url must have no credentials, since pods show it: put them into the Secrets that injection.store.secretName names, in the pods' namespaces" }}
{{- end }}
{{- range $i, $arg := .Values.extraArgs }}
{{- if not (regexMatch "^--?[a-z][a-z-]*(=|$)" $arg) }}
{{- fail (printf "extraArgs[%d] must be a flag, with its value after a =, such as --zap-log-level=debug" $i) }}
{{- end }}
{{- if regexMatch "^--?store(=|$)" $arg }}
{{- fail "extraArgs must not have --store, since pods show it: use store.secretName, or store.url" }}
{{- end }}
{{- end }}
{{- end }}
