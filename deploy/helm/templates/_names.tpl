{{/* The labels by which a release's brokers are chosen. */}}
{{- define "selector" -}}
app.kubernetes.io/name: kafka
app.kubernetes.io/instance: {{ .Release.Name }}
{{- end }}

{{/* Pods that balance are none of the brokers', to which services lead. */}}
{{- define "balanceSelector" -}}
app.kubernetes.io/name: kafka-balance
app.kubernetes.io/instance: {{ .Release.Name }}
{{- end }}

{{- define "labels" -}}
{{ include "selector" . }}
app.kubernetes.io/managed-by: {{ .Release.Service }}
helm.sh/chart: {{ .Chart.Name }}-{{ .Chart.Version }}
{{- end }}

{{/* The domain below which pods have their names. */}}
{{- define "domain" -}}
{{ .Release.Name }}.{{ .Release.Namespace }}.svc
{{- end }}

{{/* What pods call themselves: kubelets write it into their hosts files. */}}
{{- define "fullDomain" -}}
{{ include "domain" . }}.{{ .Values.clusterDomain }}
{{- end }}

{{- define "protocol" -}}
{{ ternary "SSL" "PLAINTEXT" .Values.tls }}
{{- end }}

{{/* By the name in the brokers' certificates. */}}
{{- define "bootstrap" -}}
{{ .Release.Name }}-bootstrap.{{ .Release.Namespace }}.svc:9092
{{- end }}

{{/* How agents reach the brokers' client listener. */}}
{{- define "clientConfig" -}}
{{ ternary "/etc/remote-wal-client/client.properties" "/etc/kafka/client.properties" (ne .Values.clientSecret "") }}
{{- end }}

{{- define "tokenSecret" -}}
{{ default (printf "%s-agents-http" .Release.Name) .Values.agent.tokenSecret }}
{{- end }}

{{/* The first pods of all zones, as ID@HOST:PORT. */}}
{{- define "voters" -}}
{{- $voters := list -}}
{{- range .Values.zones -}}
{{- $voters = append $voters (printf "%d@%s-%s-0.%s:9093" (int .firstId) $.Release.Name .name (include "domain" $)) -}}
{{- end -}}
{{- join "," $voters -}}
{{- end }}

{{/* All pods, as ID@HOST:PORT. Pods that run learn of others by the agents' topic. */}}
{{- define "peers" -}}
{{- $peers := list -}}
{{- range $zone := .Values.zones -}}
{{- range $ordinal := until (int $zone.replicas) -}}
{{- $id := add (int $zone.firstId) $ordinal -}}
{{- $peers = append $peers (printf "%d@%s-%s-%d.%s:19090" $id $.Release.Name $zone.name $ordinal (include "domain" $)) -}}
{{- end -}}
{{- end -}}
{{- join "," $peers -}}
{{- end }}

{{/* The lines of a zone's server.properties but the peers; configure.sh puts in what is a pod's own.
     Call it with (list $ zone). */}}
{{- define "settings" -}}
{{- $ := index . 0 -}}
{{- $zone := index . 1 -}}
{{- $lines := dict
  "node.id" "@ID@"
  "broker.rack" (default $zone.name $zone.rack)
  "process.roles" "@ROLES@"
  "controller.quorum.voters" (include "voters" $)
  "controller.listener.names" "CONTROLLER"
  "log.dirs" "/var/lib/kafka/data/logs"
  "default.replication.factor" "3"
  "min.insync.replicas" "2"
  "inter.broker.listener.name" "WAL"
  "listeners" "@CONTROLLER@CLIENT://:9092,WAL://127.0.0.1:@WAL_PORT@"
  "advertised.listeners" (printf "CLIENT://@POD@.%s:9092,WAL://127.0.0.1:@WAL_PORT@" (include "domain" $))
  "listener.security.protocol.map" (printf "CLIENT:%s,CONTROLLER:%s,WAL:PLAINTEXT" (include "protocol" $) (include "protocol" $))
  "remote.log.wal.storage.system.enable" "true"
  "remote.wal.agent.replica.port.base" "19900"
  "remote.wal.agent.peer.listener" "@POD_IP@:19090"
  "remote.wal.agent.ssl.certificate.file" "/etc/remote-wal/tls.crt"
  "remote.wal.agent.ssl.key.file" "/etc/remote-wal/tls.key"
  "remote.wal.agent.ssl.ca.file" "/etc/remote-wal/ca.crt"
  "remote.wal.agent.http.listener" (printf "@POD@.%s:19095" (include "fullDomain" $))
  "remote.wal.agent.http.ssl.certificate.file" "/etc/remote-wal/tls.crt"
  "remote.wal.agent.http.ssl.key.file" "/etc/remote-wal/tls.key"
  "remote.wal.agent.http.token.file" "/etc/remote-wal-http/token"
  "remote.wal.agent.memory.bytes" "1073741824"
  "remote.log.wal.storage.manager.class.name" $.Values.store.class
-}}
{{- if or $.Values.tls $.Values.clientSecret -}}
{{- $_ := set $lines "remote.wal.agent.client.config" (include "clientConfig" $) -}}
{{- end -}}
{{- if $.Values.tls -}}
{{- $_ := merge $lines (dict
  "ssl.keystore.type" "PEM"
  "ssl.keystore.location" "/etc/remote-wal/keystore.pem"
  "ssl.truststore.type" "PEM"
  "ssl.truststore.location" "/etc/remote-wal/ca.crt"
  "listener.name.controller.ssl.client.auth" "required"
) -}}
{{- end -}}
{{- $buckets := list -}}
{{- range $.Values.zones -}}
{{- if .bucket -}}{{- $buckets = append $buckets (printf "%s=%s" (default .name .rack) .bucket) -}}{{- end -}}
{{- end -}}
{{- if $buckets -}}
{{- $_ := set $lines "remote.wal.buckets" (join "," $buckets) -}}
{{- end -}}
{{- range $key, $value := $.Values.store.settings -}}
{{- $_ := set $lines (printf "rsm.wal.config.%s" $key) $value -}}
{{- end -}}
{{- range $key, $value := mergeOverwrite $lines (deepCopy $.Values.settings) }}
{{ $key }}={{ $value }}
{{- end -}}
{{- end }}

{{- define "checks" -}}
{{- $names := list -}}
{{- range .Values.zones -}}
{{- if has .name $names -}}{{- fail (printf "zones: %s is there twice" .name) -}}{{- end -}}
{{- $names = append $names .name -}}
{{- if gt (int .replicas) (int $.Values.certificates.brokersPerZone) -}}
{{- fail (printf "zones: %s has more brokers than certificates.brokersPerZone" .name) -}}
{{- end -}}
{{- end -}}
{{- range $first := .Values.zones -}}
{{- range $second := $.Values.zones -}}
{{- $distance := sub (int $second.firstId) (int $first.firstId) -}}
{{- if and (ne $first.name $second.name) (ge $distance 0) (lt $distance (int $.Values.certificates.brokersPerZone)) -}}
{{- fail (printf "zones: the ids of %s and %s are not certificates.brokersPerZone apart" $first.name $second.name) -}}
{{- end -}}
{{- end -}}
{{- end -}}
{{- if and .Values.rollout (not (has .Values.rollout $names)) -}}
{{- fail (printf "rollout: there is no zone %s" .Values.rollout) -}}
{{- end -}}
{{- if .Values.takeover.zone -}}
{{- range $key := list "zone" "inZone" -}}
{{- if not (has (get $.Values.takeover $key) $names) -}}
{{- fail (printf "takeover.%s: there is no zone %q" $key (get $.Values.takeover $key)) -}}
{{- end -}}
{{- end -}}
{{- end -}}
{{- if and .Values.drainOnScaleIn (lt (int .Values.terminationGracePeriodSeconds) 180) -}}
{{- fail "terminationGracePeriodSeconds: drainOnScaleIn needs at least 180, and hours where there is much to move" -}}
{{- end -}}
{{- end }}
