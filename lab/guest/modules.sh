# Sourced: the one way in which modules are loaded. What does not load is told on stdout.
module_name() { # file
	basename "$1" | sed 's/\.ko.*//; s/-/_/g'
}

# Have this module, and no other of its name.
put() { # file, parameters
	rmmod "$(module_name "$1")" 2>/dev/null || : # it was not there
	message=$(insmod "$@" 2>&1) && return
	echo "$(basename "$1") does not load: $message; $(dmesg | tail -n 1)"
	return 1
}

# Have the KVM of a list: a line a module, its file and its parameters. Others stay.
load() { # list
	for name in kvm_amd kvm_intel kvm; do
		rmmod $name 2>/dev/null || :
	done
	while read -r file params; do
		grep -q "^$(module_name "$file") " /proc/modules && continue
		# shellcheck disable=SC2086
		put "$file" $params || return
	done <"$1"
}

# Have a module of the machine's list once more, with more parameters.
reload() { # name, parameters
	wanted=$1
	shift
	while read -r file params; do
		[ "$(module_name "$file")" = "$wanted" ] || continue
		# shellcheck disable=SC2086
		put "$file" $params "$@"
		return
	done <"$LAB_RUN/modules"
}

# Have all tracepoints of KVM on, or off: what they read is looked at in all its states.
trace() { # 1 or 0
	for events in kvm kvmmmu; do
		echo "$1" >/sys/kernel/tracing/events/$events/enable || return
	done
}
