#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# In the VM: simulates faults of a rail's cable.
#   rail.sh pull|plug RAIL            takes the interface down, brings it up
#   rail.sh limit RAIL MBIT [FAR]     limits the rate from here (FAR: also from the far end; with --wire)
#   rail.sh lose RAIL PERCENT         loses packets in both directions (100: a silent cut)
#   rail.sh free RAIL                 removes limit and loss
# vm.sh --wire: both ends of the veth pair belong to one kernel. By default a kernel does not send packets to
# itself over a cable, so rules before the table "local" force it. The rules vanish with the interface, so
# plug adds them again.
set -eu
PATH=$PATH:/usr/sbin:/sbin
rail=$2 near=rail$2 far=far$2

ends()
{
    echo "$near"
    [ ! -e "/sys/class/net/$far" ] || echo "$far"
}

one_way()
{
    # $1 its interface, $2 the other one, $3 and $4 last parts of their addresses, $5 IP version; for ip
    mac=$(cat "/sys/class/net/$2/address")
    table=$((100 + 2 * rail + $3))
    echo 1 >"/proc/sys/net/ipv4/conf/$1/accept_local"
    net=10.77.$rail.
    [ "$5" = 4 ] || net=fd77:$rail::
    echo "rule del pref $table"
    echo "rule add pref $table from $net$3 to $net$4 iif lo lookup $table"
    echo "route replace $net$4 dev $1 table $table"
    echo "neigh replace $net$4 lladdr $mac dev $1 nud permanent"
}

wire()
{
    for v in 4 6; do
        {
            one_way "$near" "$far" 1 2 $v
            one_way "$far" "$near" 2 1 $v
        } | ip -force -$v -batch - 2>/dev/null || true # a rule that is not there is no error
        [ "$(ip -$v rule show | grep -c "lookup 10[$((2 * rail + 1))$((2 * rail + 2))] *\$")" = 2 ]
    done
}

case $1 in
pull) ip link set "$near" down ;;
plug)
    ip link set "$near" up
    [ -z "${WIRE:-}" ] || wire
    ;;
limit)
    for i in $near ${4:+$far}; do
        tc qdisc replace dev "$i" root tbf rate "$3mbit" burst 64k limit 8m
    done
    ;;
lose)
    for i in $(ends); do
        tc qdisc replace dev "$i" root netem loss "$3%"
    done
    ;;
free)
    for i in $(ends); do
        tc qdisc del dev "$i" root 2>/dev/null || true
    done
    ;;
esac
