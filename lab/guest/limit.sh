#!/bin/sh
# Ends a command that has had its time, after telling where its threads are, a line each.
#	limit.sh SESSION SECONDS
sleep "$2"
for task in /proc/[0-9]*/task/[0-9]*; do
	# After the name, which may have anything in it: state, parent, group, session.
	# shellcheck disable=SC2046
	set -- "$1" "$2" $(sed 's/.*) //' "$task/stat" 2>/dev/null)
	[ "$6" = "$1" ] || continue
	frames=$(sed 's/^\[<0>\] //; s/+.*//' "$task/stack" 2>/dev/null | head -n 6)
	# shellcheck disable=SC2086
	echo "lab: after $2 s $(cat "$task/comm") is in state $3, in" $frames
done
kill -KILL "-$1"
