#compdef rmctl
# SPDX-License-Identifier: GPL-2.0-or-later
# zsh completion for rmctl(1); names of VMs and jobs come from the rmd that runs.

_rmctl_vms() {
	local -a vms=(${(f)"$(command rmctl list -o NAME --raw --no-headings 2>/dev/null)"})
	compadd -a vms
}

_rmctl_jobs() {
	local -a jobs=(${(f)"$(command rmctl jobs -o ID --raw --no-headings 2>/dev/null)"})
	compadd -a jobs
}

local -a table=(
	{-o,--output=}'[columns to show]:columns:'
	{-J,--json}'[print JSON]'
	{-r,--raw}'[print values with single blanks between them]'
	{-n,--no-headings}'[print no headings]'
	{-b,--bytes}'[print sizes in bytes]'
	'--socket=[talk to the rmd behind this socket]:socket:_files'
	'--help[explain the verb]'
)

if (( CURRENT == 2 )); then
	_values 'verb' 'channels[list the channels of this host]' 'list[list the VMs that hold channels]' \
		'show[show one VM and its channels]' 'resize[change capacity, bandwidth or layout of a VM]' \
		'jobs[list jobs; show, await or cancel one]' 'state[take a channel out of use, or back]' \
		'compact[move VMs onto fewer channels]' 'ledger[check or copy the books, show their history]' \
		'reconcile[compare the books with what runs]' 'version[show the versions of rmctl and rmd]'
	return
fi

local verb=$words[2]
shift words
(( CURRENT-- ))
case $verb in
channels|list)	_arguments $table ;;
show)		_arguments $table ':VM:_rmctl_vms' ;;
resize)		_arguments $table ':VM:_rmctl_vms' {-c,--capacity=}'[memory of the VM]:size:' \
			{-w,--bandwidth=}'[number of channels]:channels:' {-l,--layout=}'[chunks on each channel]:layout:' \
			'--dry-run[only show what would be done]' '--no-wait[print the number of the job and return]' \
			'--expect-generation=[fail if the VM has changed since]:generation:' ;;
jobs)		_arguments $table ':job:_rmctl_jobs' '--cancel[stop the job]' '--wait[show its progress until it has ended]' ;;
state)		_arguments $table ':channel:' ':state:(online draining offline)' '--dry-run[only show what would be moved]' ;;
compact)	_arguments $table '--dry-run[only show what would be moved]' ;;
reconcile)	_arguments $table '--dry-run[only show it]' ;;
ledger)		_arguments $table ':what:(check backup events)' ':file:_files' ;;
version)	_arguments {-J,--json}'[print JSON]' '--socket=[talk to the rmd behind this socket]:socket:_files' ;;
esac
