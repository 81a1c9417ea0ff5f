#!/bin/sh
# Writes a pod's server.properties: configure.sh TEMPLATE FILE, with POD, POD_IP and FIRST_ID in the environment.
# The first pod of a zone is a controller as well. Beside it, with TLS: what Kafka reads as stores, and clients' settings.
set -eu
ordinal=${POD##*-}
id=$((FIRST_ID + ordinal))
roles=broker,controller
controller=CONTROLLER://:9093,
[ "$ordinal" = 0 ] || roles=broker controller=
sed -e "s/@ID@/$id/g" -e "s/@WAL_PORT@/$((19900 + id))/g" -e "s/@POD@/$POD/g" -e "s/@POD_IP@/$POD_IP/g" \
  -e "s/@ROLES@/$roles/g" -e "s|@CONTROLLER@|$controller|g" "$1" >"$2"
certificates=${3:-}
[ -n "$certificates" ] || exit 0
umask 027
cat "$certificates/tls.key" "$certificates/tls.crt" >"${2%/*}/keystore.pem"
cp "$certificates/ca.crt" "${1%/*}/client.properties" "${2%/*}"
