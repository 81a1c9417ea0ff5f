#!/bin/sh
# Writes a pod's files: configure.sh TEMPLATE FILE ZONE-CERTIFICATES OWN-CERTIFICATES, with POD, POD_IP and FIRST_ID in the
# environment. server.properties is written once, and with TLS what clients need beside it. The broker's own certificate
# of those of its zone is written again when it has changed, so that no other container sees another broker's key.
# The first pod of a zone is a controller as well.
set -eu
umask 027
ordinal=${POD##*-}
id=$((FIRST_ID + ordinal))
replace() {
  cat >"$1.new"
  if cmp -s "$1.new" "$1"; then rm "$1.new"; else mv "$1.new" "$1"; fi
}
for name in tls.key tls.crt ca.crt; do replace "$4/$name" <"$3/$ordinal/$name"; done
cat "$4/tls.key" "$4/tls.crt" | replace "$4/keystore.pem"
[ ! -e "$2" ] || exit 0
roles=broker,controller
controller=CONTROLLER://:9093,
[ "$ordinal" = 0 ] || roles=broker controller=
[ ! -e "${1%/*}/client.properties" ] || cp "${1%/*}/client.properties" "${2%/*}"
sed -e "s/@ID@/$id/g" -e "s/@WAL_PORT@/$((19900 + id))/g" -e "s/@POD@/$POD/g" -e "s/@POD_IP@/$POD_IP/g" \
  -e "s/@ROLES@/$roles/g" -e "s|@CONTROLLER@|$controller|g" "$1" | replace "$2"
