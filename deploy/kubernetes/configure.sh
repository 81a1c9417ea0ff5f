#!/bin/sh
# Writes a pod's server.properties: configure.sh TEMPLATE FILE, with POD, POD_IP, ZONE and FIRST_ID in the environment.
set -eu
id=$((FIRST_ID + ${POD##*-}))
sed -e "s/@ID@/$id/g" -e "s/@WAL_PORT@/$((19900 + id))/g" -e "s/@POD@/$POD/g" \
  -e "s/@POD_IP@/$POD_IP/g" -e "s/@ZONE@/$ZONE/g" "$1" >"$2"
