# SPDX-License-Identifier: GPL-2.0-or-later
# bash completion for rmctl(1); names of VMs, channels and jobs come from the rmd that runs.

_rmctl_options() {
	case $1 in
	channels|list)	echo --output --json --raw --no-headings --bytes --socket --help ;;
	show)		echo --output --json --raw --no-headings --bytes --socket --help ;;
	resize)		echo --capacity --bandwidth --layout --dry-run --no-wait --expect-generation \
			     --output --json --raw --no-headings --bytes --socket --help ;;
	jobs)		echo --cancel --wait --output --json --raw --no-headings --bytes --socket --help ;;
	state|compact|reconcile)
			echo --dry-run --output --json --raw --no-headings --bytes --socket --help ;;
	ledger)		echo --output --json --raw --no-headings --bytes --socket --help ;;
	version)	echo --json --socket --help ;;
	esac
}

# Asks the rmd that the command line names; says nothing where it does not answer.
_rmctl_ask() {
	command rmctl ${socket:+--socket "$socket"} "$@" --raw --no-headings 2>/dev/null
}

_rmctl_columns() {
	command rmctl "$1" --help 2>/dev/null | sed -n '/^Columns\|^The columns/,$s/^  [* ] \([A-Z-]*\) .*/\1/p'
}

_rmctl() {
	local cur=${COMP_WORDS[COMP_CWORD]} prev=${COMP_WORDS[COMP_CWORD - 1]} verb='' socket='' i word
	local verbs='channels list show resize jobs state compact ledger reconcile version'

	for ((i = 1; i < COMP_CWORD; i++)); do
		word=${COMP_WORDS[i]}
		if [[ $word == --socket ]]; then
			socket=${COMP_WORDS[i + 1]}
			((i++))
		elif [[ $word != -* && -z $verb ]]; then
			verb=$word
		fi
	done

	case $prev in
	--socket)
		compopt -o default
		COMPREPLY=()
		return ;;
	-o|--output)
		mapfile -t COMPREPLY < <(compgen -W "$(_rmctl_columns "$verb")" -- "${cur^^}")
		return ;;
	-c|--capacity|-w|--bandwidth|--expect-generation)
		COMPREPLY=()
		return ;;
	-l|--layout)
		mapfile -t COMPREPLY < <(compgen -S = -W "$(_rmctl_ask channels -o NAME)" -- "$cur")
		compopt -o nospace
		return ;;
	esac

	if [[ -z $verb ]]; then
		mapfile -t COMPREPLY < <(compgen -W "$verbs --socket --help --version" -- "$cur")
	elif [[ $cur == -* ]]; then
		mapfile -t COMPREPLY < <(compgen -W "$(_rmctl_options "$verb")" -- "$cur")
	else
		case $verb in
		show|resize)	mapfile -t COMPREPLY < <(compgen -W "$(_rmctl_ask list -o NAME)" -- "$cur") ;;
		state)		mapfile -t COMPREPLY < <(compgen -W "$(_rmctl_ask channels -o NAME) online draining offline" -- "$cur") ;;
		ledger)		mapfile -t COMPREPLY < <(compgen -W "check backup events" -- "$cur") ;;
		jobs)		mapfile -t COMPREPLY < <(compgen -W "$(_rmctl_ask jobs -o ID)" -- "$cur") ;;
		*)		COMPREPLY=() ;;
		esac
	fi
}

complete -F _rmctl rmctl
