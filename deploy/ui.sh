# SPDX-License-Identifier: Apache-2.0
# Progress display for the scripts in deploy/; sourced, POSIX sh.
#
#   step "Building" make all      runs the command with its output in $LOG_DIR/<n>.log, shows a
#                                 spinner with the elapsed seconds and the log's last line on a
#                                 terminal, one line otherwise; on failure shows the log's end and exits. The
#                                 line at the end says how long it took and what it computed for.
#   begin "Tests" make check      begins a step beside those that follow; its number is in ui_n
#   ui_wait N                     waits for the step of that number
#   finish                        waits for the steps that began; each is shown when it has ended. When one has
#                                 failed, nothing more begins: those that run are waited for, then this exits
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

# What runs: the steps' numbers, and the processes that wait for their commands.
ui_running='' ui_pids=''
trap 'trap - INT TERM; [ -z "$ui_pids" ] || kill $ui_pids 2>/dev/null; printf "\n"; exit 130' INT TERM

# Runs a command, and leaves its exit status and the seconds that it computed for beside its log.
ui_run()
{
    # $1 log, then the command
    ui_log=$1 ui_rc=0
    shift
    "$@" >"$ui_log" 2>&1 </dev/null &
    ui_child=$!
    trap 'kill $ui_child 2>/dev/null' TERM
    wait $ui_child || ui_rc=$?
    times >"$ui_log.times"
    awk 'NR == 2 { split($0, t, /[ms ]+/); printf "%d\n", t[1] * 60 + t[2] + t[3] * 60 + t[4] + 0.5 }' "$ui_log.times" \
        >"$ui_log.computed"
    rm -f "$ui_log.times"
    echo $ui_rc >"$ui_log.ended"
}

begin()
{
    [ $ui_tty = 1 ] || printf '  . %s ...\n' "$1"
    ui_n=$((ui_n + 1))
    ui_log=$LOG_DIR/$ui_n-$(printf '%s' "$1" | tr -c 'A-Za-z0-9' '-').log
    rm -f "$ui_log".*
    eval "ui_title_$ui_n=\$1 ui_log_$ui_n=\$ui_log ui_start_$ui_n=$(date +%s)"
    shift
    ui_run "$ui_log" "$@" &
    ui_pids="$ui_pids $!"
    ui_running="$ui_running $ui_n"
}

# How a step ended; returns whether it failed.
ui_show()
{
    # $1 number
    eval "ui_title=\$ui_title_$1 ui_log=\$ui_log_$1 ui_start=\$ui_start_$1"
    ui_rc=$(cat "$ui_log.ended") ui_took=$(($(date +%s) - ui_start))
    if [ "$ui_rc" -ne 0 ]; then
        printf '  %sx%s %-28s failed (exit %d); the end of %s:\n' "$ui_red" "$ui_off" "$ui_title" "$ui_rc" "$ui_log"
        tail -n 40 "$ui_log" | sed 's/^/    /'
    else
        printf '  %s+%s %-28s %4ds, computed for %4ds  %s%s%s\n' "$ui_green" "$ui_off" "$ui_title" $ui_took \
            "$(cat "$ui_log.computed")" "$ui_dim" "$(ui_summary "$ui_log")" "$ui_off"
    fi
    rm -f "$ui_log.ended" "$ui_log.computed"
    return "$ui_rc"
}

# Shows those that have ended since; with a spinner, the longest of the others.
ui_look()
{
    ui_left=''
    for ui_i in $ui_running; do
        eval "ui_log=\$ui_log_$ui_i"
        if [ ! -e "$ui_log.ended" ]; then
            ui_left="$ui_left $ui_i"
            continue
        fi
        [ $ui_tty = 0 ] || printf '\r\033[K'
        ui_show "$ui_i" || ui_failed=1
    done
    ui_running=$ui_left
    [ $ui_tty = 0 ] || [ -z "$ui_running" ] || ui_spin "${ui_running# }"
}

ui_frames='|/-\'
ui_spin()
{
    # $1 numbers
    eval "ui_title=\$ui_title_${1%% *} ui_log=\$ui_log_${1%% *} ui_start=\$ui_start_${1%% *}"
    ui_first=${ui_frames%"${ui_frames#?}"}
    ui_frames=${ui_frames#?}$ui_first
    ui_cols=$(stty size 2>/dev/null | cut -d' ' -f2)
    ui_last=$(tail -n 1 "$ui_log" 2>/dev/null | tr -d '\r' | cut -c "1-$((${ui_cols:-80} > 50 ? ${ui_cols:-80} - 46 : 20))")
    printf '\r\033[K  %s %-28s %4ds  %s%s%s' "$ui_first" "$ui_title" $(($(date +%s) - ui_start)) "$ui_dim" "$ui_last" "$ui_off"
}

ui_failed=0

# Does this step run; all, or one has failed: does any?
ui_busy()
{
    case "$ui_failed$1" in
    1* | *all) [ -n "$ui_running" ] ;;
    *) case "$ui_running " in *" $1 "*) ;; *) return 1 ;; esac ;;
    esac
}

ui_wait()
{
    # $1 number, or all
    while ui_busy "$1"; do
        sleep 0.1
        ui_look
    done
    [ $ui_failed = 0 ] || exit 1
}

finish()
{
    ui_wait all
    wait
    ui_pids=''
}

step()
{
    begin "$@"
    ui_wait $ui_n
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
