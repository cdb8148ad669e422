#!/bin/sh
# A launcher's stand-in for ssh: rdma_agent.sh [options] ADDRESS COMMAND... runs the command on the
# guest's host with that address. Its ranks use the NIC of that host, and no other.
while [ "${1#-}" != "$1" ]; do shift; done
host=$((${1##*.} - 1))
shift
# The disk is shared, but a launcher's files of one host must not meet those of another.
mkdir -p "/tmp/host$host"
export TMPDIR="/tmp/host$host" UCX_NET_DEVICES="rxe$host:1" PYCOLL_RAILS="rxe$host"
exec "$(dirname "$0")/../tests/rdma/on" "$host" sh -c "$*"
