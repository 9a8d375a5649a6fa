#!/bin/sh
# What stamp.c does, as the scripts in crontabs do things: a program for every step.
began=$(date +%s%N)
case $3 in
/*)
    exec 3<"$3"
    echo
    cat <&3
    ;;
*) sleep 0.005 ;;
esac
echo "$2 ${LOCKRUN_TOKEN:--} $began $(date +%s%N)" >>"$1"
