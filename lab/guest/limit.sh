#!/bin/sh
# Ends a command that has had its time, after telling where its threads are, those together
# that are at the same place.
#	limit.sh SESSION SECONDS [CLOCK]
# The clock is a file of lab/machine/served.py: its seconds are those in which the machine got
# of its host what it wanted.
clock() { # what can't be read just now is no time
	until read -r now <"$1" && [ "$now" ]; do sleep 1; done
}

if [ -e "$3" ]; then
	clock "$3"
	end=$((now + $2))
	# It is never ahead of other clocks: no need to look before.
	while [ "$now" -lt "$end" ]; do
		sleep $((end - now))
		clock "$3"
	done
else
	sleep "$2"
fi
for task in /proc/[0-9]*/task/[0-9]*; do
	# After the name, which may have anything in it: state, parent, group, session.
	# shellcheck disable=SC2046
	set -- "$1" "$2" $(sed 's/.*) //' "$task/stat" 2>/dev/null)
	[ "$6" = "$1" ] || continue
	# shellcheck disable=SC2046
	echo "$(cat "$task/comm") in state $3:" $(sed 's/^\[<0>\] //; s/+.*//; 6q' "$task/stack")
done 2>/dev/null | sort | uniq -c | sed "s/^ */lab: after $2 s: /"
kill -KILL "-$1"
