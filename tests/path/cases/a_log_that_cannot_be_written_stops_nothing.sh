# stderr may be full, closed or stalled: the daemon starts, serves and changes things all the same, and counts the lines
# that it could not write.

# serves NAME: a group of this name is made, a volume of it is limited a hundred times, and it is deleted.
serves() {
    local change
    p group create "$1" --level raid1 --drives "mem:$1-a:64MiB,mem:$1-b:64MiB" --yes >/dev/null
    p volume create "$1/db" --size 16MiB >/dev/null
    for change in $(seq 100); do p volume limit "$1/db" --iops "$change" >/dev/null; done
    p group delete "$1" --yes >/dev/null
}
dropped() {
    curl -sS --unix-socket "$SOCKET" http://localhost/metrics | sed -n 's/^purlin_log_lines_dropped_total //p'
}
# with_stderr DESCRIPTOR: starts the daemon with it.
with_stderr() {
    purlind --state "$STATE" --socket "$SOCKET" 2>&"$1" &
    DAEMON=$!
    for _ in $(seq 200); do
        if p group list >/dev/null 2>&1; then return 0; fi
        kill -0 "$DAEMON" 2>/dev/null || fail "the daemon ended"
        sleep 0.05
    done
    fail "the daemon does not answer"
}

# A full disk.
exec 7>/dev/full
with_stderr 7
serves full
(($(dropped) > 0)) || fail "no line was counted that /dev/full refused"
stop_daemon TERM

# Nobody reads the pipe any more.
mkfifo "$DIR/pipe"
exec 8<>"$DIR/pipe"
exec 7>"$DIR/pipe"
exec 8<&-
with_stderr 7
serves closed
(($(dropped) > 0)) || fail "no line was counted that a closed pipe refused"
stop_daemon TERM

# Somebody holds the pipe open and reads nothing: it takes 4 KiB, and the queue a thousand lines.
exec 8<>"$DIR/pipe"
python3 -c 'import fcntl; fcntl.fcntl(8, 1031, 4096)'
exec 7>"$DIR/pipe"
with_stderr 7
began=$SECONDS
serves stalled
stop_daemon TERM
((SECONDS - began < 60)) || fail "changes waited for the log"
