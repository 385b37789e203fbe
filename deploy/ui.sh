# SPDX-License-Identifier: Apache-2.0
# Progress display for the scripts in deploy/; sourced, POSIX sh.
#
#   step "Building" make all      runs the command with its output in $LOG_DIR/<n>.log, shows a
#                                 spinner with the elapsed seconds and the log's last line on a
#                                 terminal, one line otherwise; on failure shows the log's end and exits.
#   packages run|check            the step that installs packages, after sudo's question for a password
#   say "text"                    a line
#
# NO_COLOR is respected.

: "${LOG_DIR:=build/log}"
mkdir -p "$LOG_DIR"
ui_n=0
if [ -t 1 ]; then ui_tty=1; else ui_tty=0; fi
if [ $ui_tty = 1 ] && [ -z "${NO_COLOR:-}" ]; then
    ui_bold=$(printf '\033[1m') ui_dim=$(printf '\033[2m') ui_off=$(printf '\033[0m')
    ui_green=$(printf '\033[32m') ui_red=$(printf '\033[31m')
else
    ui_bold='' ui_dim='' ui_off='' ui_green='' ui_red=''
fi

say()
{
    printf '%s\n' "$*"
}

# Ends the running step when the script is interrupted.
ui_child=
trap 'trap - INT TERM; [ -n "$ui_child" ] && kill "$ui_child" 2>/dev/null; printf "\n"; exit 130' INT TERM

ui_spin()
{
    # $1 title, $2 log, $3 start; runs until the child ends
    ui_frames='|/-\'
    while kill -0 "$ui_child" 2>/dev/null; do
        ui_first=${ui_frames%"${ui_frames#?}"}
        ui_frames=${ui_frames#?}$ui_first
        ui_cols=$(stty size 2>/dev/null | cut -d' ' -f2)
        ui_last=$(tail -n 1 "$2" 2>/dev/null | tr -d '\r' | cut -c "1-$((${ui_cols:-80} > 50 ? ${ui_cols:-80} - 46 : 20))")
        printf '\r\033[K  %s %-28s %4ds  %s%s%s' "$ui_first" "$1" $(($(date +%s) - $3)) "$ui_dim" "$ui_last" "$ui_off"
        sleep 0.2
    done
    printf '\r\033[K'
}

step()
{
    ui_title=$1
    shift
    ui_n=$((ui_n + 1))
    ui_log=$LOG_DIR/$ui_n-$(printf '%s' "$ui_title" | tr -c 'A-Za-z0-9' '-').log
    ui_start=$(date +%s)
    "$@" >"$ui_log" 2>&1 </dev/null &
    ui_child=$!
    if [ $ui_tty = 1 ]; then
        ui_spin "$ui_title" "$ui_log" "$ui_start"
    else
        printf '  . %s ...\n' "$ui_title"
    fi
    ui_rc=0
    wait "$ui_child" || ui_rc=$?
    ui_child=
    if [ $ui_rc -ne 0 ]; then
        printf '  %sx%s %-28s failed (exit %d); the end of %s:\n' "$ui_red" "$ui_off" "$ui_title" $ui_rc "$ui_log"
        tail -n 40 "$ui_log" | sed 's/^/    /'
        exit 1
    fi
    printf '  %s+%s %-28s %4ds  %s%s%s\n' "$ui_green" "$ui_off" "$ui_title" $(($(date +%s) - ui_start)) \
        "$ui_dim" "$(ui_summary "$ui_log")" "$ui_off"
}

packages()
{
    # The display would cover the question.
    if [ "$(id -u)" != 0 ] && command -v sudo >/dev/null && [ -n "$(sh deploy/deps.sh "$1" --list)" ]; then
        sudo -v
    fi
    step "Packages" sh deploy/deps.sh "$1"
}

# The line of a log that is shown: the counts of a test run, or nothing.
ui_summary()
{
    grep -E '^[0-9]+ passed, [0-9]+ failed' "$1" | tail -n 1
}
