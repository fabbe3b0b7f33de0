# Sourced: lines that lab/machine/result.py tells from what programs print, by the character
# RS they begin with; the kernel's log has them, too.
mark() {
	printf '\036lab: %s\n' "$*"
}

begin() { # number, name
	echo "lab: run $2" >/dev/kmsg
	mark "run $*"
}

end() { # number, status
	echo "lab: end, status $2" >/dev/kmsg
	mark "end $*"
}
