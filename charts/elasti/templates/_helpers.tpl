{{/*
Most helpers take a dictionary: `root` (the chart's context) and `program`, "operator", "resolver" or "dashboard".
Names are fixed: they are those of `elasti install`, and there is one installation in a namespace.
*/}}

{{- define "elasti.values" -}}
{{ index .root.Values (get (dict "operator" "elastiController" "resolver" "elastiResolver" "dashboard" "dashboard") .program) | toJson }}
{{- end }}

{{- define "elasti.container" -}}
{{- $values := include "elasti.values" . | fromJson -}}
{{ eq .program "dashboard" | ternary $values (index $values (eq .program "operator" | ternary "manager" "proxy")) | toJson }}
{{- end }}

{{- define "elasti.labels" -}}
app.kubernetes.io/name: elasti
app.kubernetes.io/part-of: elasti
app.kubernetes.io/managed-by: {{ .root.Release.Service }}
app.kubernetes.io/instance: {{ .root.Release.Name | quote }}
app.kubernetes.io/version: {{ .root.Chart.AppVersion | quote }}
helm.sh/chart: {{ printf "%s-%s" .root.Chart.Name .root.Chart.Version | replace "+" "_" }}
{{- with .program }}
app.kubernetes.io/component: {{ . }}
app: elasti-{{ . }}
{{- end }}
{{- end }}

{{/*
The labels that find a program's pods. A Deployment's can never change: one of an earlier release, KubeElasti's
included, keeps those that it has, and pods get them too.
*/}}
{{- define "elasti.selector" -}}
{{- $own := dict "app" (print "elasti-" .program) -}}
{{- $live := lookup "apps/v1" "Deployment" .root.Release.Namespace (print "elasti-" .program) -}}
{{ dig "spec" "selector" "matchLabels" $own $live | toYaml }}
{{- end }}

{{/* Takes `name`, `namespace` (none for the cluster's own), `kind` and `annotations` besides. */}}
{{- define "elasti.metadata" -}}
{{- $global := .root.Values.global -}}
{{- $own := dict -}}
{{- if .program }}{{ $own = include "elasti.values" . | fromJson }}{{ end -}}
{{- $labels := include "elasti.labels" . | fromYaml -}}
{{- $annotations := .annotations | default dict -}}
{{- if eq (.kind | default "") "Pod" }}{{ $labels = merge (include "elasti.selector" . | fromYaml) $labels }}{{ end -}}
{{- $kinds := dict
  "Pod" (list "pod" "" "")
  "Deployment" (list "deployment" "" "")
  "Service" (list "service" "service" "")
  "ServiceAccount" (list "" "serviceAccount" "serviceAccount")
  "ServiceMonitor" (list "" "serviceMonitor" "") -}}
{{- range $what := list "Labels" "Annotations" -}}
  {{- $from := list -}}
  {{- with index $kinds ($.kind | default "") -}}
    {{- $prefix := index . 0 -}}
    {{- if $prefix -}}{{- $from = list (index $own (print $prefix $what)) (index $global (print $prefix $what)) -}}{{- end -}}
    {{- with index . 1 -}}{{- $from = prepend $from (dig . (lower $what) dict $own) -}}{{- end -}}
    {{- with index . 2 -}}{{- $from = append $from (dig . (lower $what) dict $global) -}}{{- end -}}
  {{- end -}}
  {{- $from = append $from (index $own (print "common" $what)) -}}
  {{- $from = append $from (index $global (lower $what)) -}}
  {{- $into := eq $what "Labels" | ternary $labels $annotations -}}
  {{- range $from -}}{{- $into = merge $into (. | default dict) -}}{{- end -}}
{{- end -}}
name: {{ .name }}
{{- with .namespace }}
namespace: {{ . | quote }}
{{- end }}
labels:
  {{- toYaml $labels | nindent 2 }}
{{- with $annotations }}
annotations:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- end }}

{{- define "elasti.image" -}}
{{- $image := .Values.image -}}
{{- if $image.digest -}}
{{ $image.repository }}@{{ $image.digest }}
{{- else -}}
{{ $image.repository }}:{{ $image.tag | default .Chart.AppVersion }}
{{- end -}}
{{- end }}

{{/* Names, or objects with a name. */}}
{{- define "elasti.pullSecrets" -}}
{{- $names := list }}
{{- range .Values.global.imagePullSecrets }}
{{- $names = append $names (kindIs "string" . | ternary . (get (kindIs "map" . | ternary . dict) "name")) }}
{{- end }}
{{- range uniq $names }}
- name: {{ . | quote }}
{{- end }}
{{- end }}

{{/* Not empty where the shared port is open: as it is said, else while KubeElasti's operator is in the namespace. */}}
{{- define "elasti.sharedPort" -}}
{{- if kindIs "bool" .Values.sharedPort.enabled -}}
{{ .Values.sharedPort.enabled | ternary "open" "" }}
{{- else -}}
{{- range (lookup "apps/v1" "Deployment" .Release.Namespace "").items -}}
{{- $labels := .metadata.labels | default dict -}}
{{- if and (eq (get $labels "control-plane") "controller-manager") (eq (get $labels "app.kubernetes.io/part-of") "elasti") -}}
open
{{- end -}}
{{- end -}}
{{- end -}}
{{- end }}

{{/* Not empty where the operator makes the certificates of both programs. */}}
{{- define "elasti.makesCertificates" -}}
{{- if and .Values.tls.enabled (empty .Values.tls.secretName) -}}yes{{- end -}}
{{- end }}

{{/* Not empty where the operator reads kubelets: only a ClusterRole can grant it. */}}
{{- define "elasti.readsKubelets" -}}
{{- if and .Values.kubeletStats.enabled (empty .Values.global.allowedNamespaces) -}}yes{{- end -}}
{{- end }}

{{/*
The triggers of ElastiServices that leave theirs out: as it is said, else what the installation has, and `network` for
the first in a cluster. Where there were ElastiServices, those without triggers never slept, and must not begin to.
*/}}
{{- define "elasti.chosenTriggers" -}}
{{- $found := list "network" -}}
{{- $live := lookup "apps/v1" "Deployment" .Release.Namespace "elasti-operator" -}}
{{- if kindIs "slice" .Values.defaultTriggers -}}
  {{- $found = .Values.defaultTriggers -}}
{{- else if $live -}}
  {{- $found = list -}}
  {{- $noted := get ($live.metadata.annotations | default dict) "elasti.truefoundry.com/default-triggers" -}}
  {{- if $noted }}{{ $found = splitList "," $noted }}{{ end -}}
  {{- range dig "spec" "template" "spec" "containers" list $live -}}
    {{- range .env -}}
      {{- if eq .name "ELASTI_DEFAULT_TRIGGERS" }}{{ $found = splitList "," .value }}{{ end -}}
    {{- end -}}
  {{- end -}}
{{- else if lookup "apiextensions.k8s.io/v1" "CustomResourceDefinition" "" "elastiservices.elasti.truefoundry.com" -}}
  {{- $found = list -}}
{{- end -}}
{{ join "," $found }}
{{- end }}

{{/* Those of them that this installation has the rights for. */}}
{{- define "elasti.defaultTriggers" -}}
{{- $found := include "elasti.chosenTriggers" . | splitList "," | compact -}}
{{- if not (include "elasti.readsKubelets" .) }}{{ $found = without $found "network" }}{{ end -}}
{{ join "," $found }}
{{- end }}

{{/*
What a program calls, from the rules of `elasti manifests`, with the ports that only a release knows. The API server's
own port is read if the release is for the whole cluster, and so is installed by an account that may.
*/}}
{{- define "elasti.egress" -}}
{{- if .root.Values.networkPolicy.egress -}}
{{- $access := .root.Files.Get "files/access.yaml" | fromYaml -}}
{{- $rules := get $access.egress (printf "elasti-%s" .program) -}}
{{- if and (eq .program "operator") (not (include "elasti.readsKubelets" .root)) }}{{ $rules = $access.confinedOperatorEgress }}{{ end -}}
{{- $ports := (last $rules).ports -}}
{{- if not .root.Values.global.allowedNamespaces -}}
  {{- range (lookup "discovery.k8s.io/v1" "EndpointSlice" "default" "kubernetes").ports }}{{ $ports = append $ports (dict "protocol" "TCP" "port" (float64 .port)) }}{{ end -}}
{{- end -}}
{{- range .root.Values.networkPolicy.egressPorts }}{{ $ports = append $ports (dict "protocol" "TCP" "port" (float64 .)) }}{{ end -}}
policyTypes: [Ingress, Egress]
egress:
  {{- toYaml (append (initial $rules) (dict "ports" (uniq $ports))) | nindent 2 }}
{{- else -}}
policyTypes: [Ingress]
{{- end -}}
{{- end }}

{{/* The one that is named; else our own, which only an installation for the cluster has. */}}
{{- define "elasti.priorityClass" -}}
{{- .Values.priorityClassName | default (.Values.global.allowedNamespaces | empty | ternary "elasti-critical" "") -}}
{{- end }}

{{- define "elasti.watched" -}}
{{ join "," (.Values.global.allowedNamespaces | default .Values.watchNamespaces) }}
{{- end }}

{{/* An amount of CPU or memory as a number, to compare. */}}
{{- define "elasti.amount" -}}
{{- $text := toString . -}}
{{- $units := dict "" 1.0 "m" 0.001 "k" 1e3 "M" 1e6 "G" 1e9 "T" 1e12
  "Ki" 1024.0 "Mi" 1048576.0 "Gi" 1073741824.0 "Ti" 1099511627776.0 -}}
{{- $number := regexFind "^[0-9.]+(e[+]?[0-9]+)?" $text -}}
{{ mulf (float64 $number) (index $units (trimPrefix $number $text)) }}
{{- end }}

{{/* The resolvers' ports for Services, FIRST-LAST, as `elasti install --port-range` takes them. */}}
{{- define "elasti.ports" -}}
{{- $range := .Values.portRange -}}
{{- if not (regexMatch "^[0-9]{1,5}-[0-9]{1,5}$" $range) }}{{ fail (printf "portRange: %q is not FIRST-LAST; write one such as 30000-49999" $range) }}{{ end -}}
{{- $first := splitList "-" $range | first | atoi }}{{ $last := splitList "-" $range | last | atoi -}}
{{- if or (lt $first 9000) (lt $last $first) (gt $last 65535) }}{{ fail (printf "portRange: %q does not rise within 9000-65535; below are the programs' own ports" $range) }}{{ end -}}
{{- $size := add 1 (sub $last $first) | int -}}
{{- if or (lt $size 100) (gt $size 40000) }}{{ fail (printf "portRange: %q has %d ports, and not 100 to 40000" $range $size) }}{{ end -}}
{{- if or (hasKey .Values.elastiController.env "ELASTI_PORT_RANGE") (hasKey .Values.elastiController.envFromSecrets "ELASTI_PORT_RANGE") }}{{ fail "elastiController.env.ELASTI_PORT_RANGE is not enough, since policies follow it: write portRange" }}{{ end -}}
{{ $range }}
{{- end }}

{{/* The ports of a resolver's own connections, if those of Linux (from 32768) are in the range: the larger part beside it. */}}
{{- define "elasti.ephemeral" -}}
{{- $ports := include "elasti.ports" . | splitList "-" -}}
{{- $first := first $ports | atoi }}{{ $last := last $ports | atoi -}}
{{- if ge $last 32768 -}}
{{- ge (sub $first 9001) (sub 65534 $last) | ternary (printf "9000 %d" (sub $first 1)) (printf "%d 65535" (add $last 1)) -}}
{{- end -}}
{{- end }}

{{/* A program's resources: what is below our minimum is raised to it. */}}
{{- define "elasti.resources" -}}
{{- $resources := (include "elasti.container" . | fromJson).resources | default dict -}}
{{- range $least := list (list "requests" "memory" "128Mi") (list "limits" "memory" "256Mi") (list "limits" "cpu" "1") -}}
  {{- $kind := index $resources (index $least 0) | default dict -}}
  {{- with index $kind (index $least 1) -}}
    {{- if lt (include "elasti.amount" . | float64) (include "elasti.amount" (index $least 2) | float64) -}}
      {{- $_ := set $kind (index $least 1) (index $least 2) -}}
    {{- end -}}
  {{- end -}}
{{- end -}}
{{ toYaml $resources }}
{{- end }}

{{- define "elasti.env" -}}
{{- $root := .root -}}
{{- $other := eq .program "operator" | ternary "resolver" "operator" -}}
{{- $values := include "elasti.values" . | fromJson -}}
{{- $named := (include "elasti.container" . | fromJson).env | default dict -}}
{{- $namespace := $root.Release.Namespace -}}
{{- $settings := dict "ELASTI_OPERATOR_NAMESPACE" $namespace "ELASTI_RESOLVER_NAMESPACE" $namespace -}}
{{- with include "elasti.watched" $root }}{{ $_ := set $settings "WATCH_NAMESPACES" . }}{{ end -}}
{{- if $root.Values.authentication -}}
  {{- $_ := set $settings "ELASTI_ALLOWED_CALLERS" (printf "system:serviceaccount:%s:elasti-%s" $namespace $other) -}}
  {{- $_ := set $settings (printf "ELASTI_%s_TOKEN_FILE" (upper $other)) (print "/var/run/secrets/elasti/" $other) -}}
  {{- /* Only a ClusterRole can let a program ask the API server about tokens. */ -}}
  {{- if $root.Values.global.allowedNamespaces }}{{ $_ := set $settings "ELASTI_AUTHENTICATION" "JWKS" }}{{ end -}}
{{- else -}}
  {{- $_ := set $settings "ELASTI_AUTHENTICATE" "false" -}}
{{- end -}}
{{- if $root.Values.tls.enabled -}}
  {{- $_ := set $settings "ELASTI_TLS_DIRECTORY" "/var/run/secrets/elasti-tls" -}}
  {{- if $root.Values.tls.required }}{{ $_ := set $settings "ELASTI_TLS_REQUIRED" "true" }}{{ end -}}
  {{- if and (eq .program "operator") (include "elasti.makesCertificates" $root) }}{{ $_ := set $settings "ELASTI_TLS_SECRET" "elasti-tls" }}{{ end -}}
{{- end -}}
{{- $variables := dict
  "pollingInterval" "POLLING_INTERVAL"
  "prometheusTriggerServerAddress" "PROMETHEUS_TRIGGER_SERVER_ADDRESS"
  "prometheusTriggerAuthorizationHeader" "PROMETHEUS_TRIGGER_AUTHORIZATION_HEADER"
  "notifyUrl" "ELASTI_NOTIFY_URL" -}}
{{- if eq .program "operator" -}}
  {{- if include "elasti.readsKubelets" $root -}}
    {{- $_ := set $settings "ELASTI_KUBELET_ACCOUNT" (print $namespace "/elasti-kubelet-stats") -}}
    {{- if $root.Values.kubeletStats.insecureTLS }}{{ $_ := set $settings "ELASTI_KUBELET_INSECURE_TLS" "true" }}{{ end -}}
  {{- end -}}
  {{- $ports := include "elasti.ports" $root -}}
  {{- if ne $ports "20000-29999" }}{{ $_ := set $settings "ELASTI_PORT_RANGE" $ports }}{{ end -}}
  {{- if $root.Values.doze.enabled }}{{ $_ := set $settings "ELASTI_DOZE" "true" }}{{ end -}}
  {{- if $root.Values.enrolment.enabled -}}
    {{- $_ := set $settings "ELASTI_ENROLMENT" "true" -}}
    {{- if ne $root.Values.enrolment.observeFor "24h" }}{{ $_ := set $settings "ELASTI_ENROLMENT_OBSERVE_FOR" $root.Values.enrolment.observeFor }}{{ end -}}
  {{- end -}}
  {{- with $root.Values.resolver.endpoints.targetRef }}{{ if ne . "Auto" }}{{ $_ := set $settings "ELASTI_TARGET_REF" . }}{{ end }}{{ end -}}
  {{- with include "elasti.defaultTriggers" $root }}{{ $_ := set $settings "ELASTI_DEFAULT_TRIGGERS" . }}{{ end -}}
{{- end -}}
{{- if eq .program "resolver" -}}
  {{- $_ := set $settings "TMPDIR" "/run/elasti" -}}
  {{- if include "elasti.sharedPort" $root }}{{ $_ := set $settings "ELASTI_RESOLVER_PROXY_PORT" "8012" }}{{ end -}}
  {{- if $root.Values.waitingPage.enabled }}{{ $_ := set $settings "ELASTI_WAITING_PAGE" "Auto" }}{{ end -}}
  {{- if ne $root.Values.global.kubernetesClusterDomain "cluster.local" -}}
    {{- $_ := set $settings "KUBERNETES_CLUSTER_DOMAIN" $root.Values.global.kubernetesClusterDomain -}}
  {{- end -}}
  {{- $variables = dict
    "headerForHost" "HEADER_FOR_HOST"
    "reqTimeout" "REQ_TIMEOUT"
    "queueSize" "QUEUE_SIZE"
    "maxIdleProxyConnsPerHost" "MAX_IDLE_PROXY_CONNS_PER_HOST"
    "maxConnectionsPerClient" "ELASTI_MAX_CONNECTIONS_PER_CLIENT"
    "unlimitedClients" "ELASTI_UNLIMITED_CLIENTS" -}}
{{- end -}}
{{- range $key, $name := $variables -}}
  {{- with index $named $key }}{{ $_ := set $settings $name (toString .) }}{{ end -}}
{{- end -}}
{{- range $name, $value := $values.env }}{{ $_ := set $settings $name (kindIs "string" $value | ternary $value (toJson $value)) }}{{ end -}}
{{- /* What the pod knows of itself first, then Secrets: other values may name them. */ -}}
{{- range $name, $path := dict "POD_NAME" "metadata.name" "POD_NAMESPACE" "metadata.namespace" "POD_IP" "status.podIP" }}
{{- if not (or (hasKey $settings $name) (hasKey ($values.envFromSecrets | default dict) $name)) }}
- name: {{ $name }}
  valueFrom: {fieldRef: {fieldPath: {{ $path }}}}
{{- end }}
{{- end }}
{{- range $name, $secret := $values.envFromSecrets }}
- name: {{ $name }}
  valueFrom: {secretKeyRef: {name: {{ $secret.name | quote }}, key: {{ $secret.key | quote }}}}
{{- $settings = omit $settings $name }}
{{- end }}
{{- range $name, $value := $settings }}
- name: {{ $name }}
  value: {{ $value | quote }}
{{- end }}
{{- end }}
