#!/bin/sh
# A small nightly report: how full the disks of this machine are. It needs only POSIX tools.
#
#   REPORT_DIR  write the report to report-DATE.txt in this directory instead of standard output. Nobody else may be able to write to it, nor to
#               that of REPORT_LOG: a link planted there would lead to another file.
#   REPORT_LOG  append one line per run to this file: time, host, pid, and the lock's key and fence ("-" without a lock)
#
# Under lockrun, LOCKRUN_KEY and LOCKRUN_FENCE are set; the report says which run wrote it.

set -eu

key=${LOCKRUN_KEY:--}
fence=${LOCKRUN_FENCE:--}
host=$(uname -n)
warn_at=90

report() {
    printf 'Disk report of %s, %s\n' "$host" "$(date '+%Y-%m-%d %H:%M:%S')"
    printf 'Lock %s, fence %s\n\n' "$key" "$fence"
    # df ends with an error when a single mount cannot be read; the others are still worth reporting.
    { df -Pk 2>/dev/null || true; } | awk -v warn_at="$warn_at" '
        NR == 1 || $2 + 0 < 100000 { next }  # the heading, and file systems too small to matter
        {
            used = $5 + 0
            mount = $6
            for (i = 7; i <= NF; i++) mount = mount " " $i
            if (mount ~ "^/(proc|sys|dev)(/|$)") next
            note = (used >= warn_at) ? "  <- nearly full" : ""
            printf "%3d %% of %9.1f GB  %s%s\n", used, $2 / 1e6, mount, note
        }'
}

if [ -n "${REPORT_DIR:-}" ]; then
    # Written aside and renamed, so that no reader sees half a report.
    target=$REPORT_DIR/report-$(date '+%Y-%m-%d').txt
    partial=$target.$$
    trap 'rm -f "$partial"' EXIT
    report >"$partial"
    mv "$partial" "$target"
    trap - EXIT
else
    report
fi

if [ -n "${REPORT_LOG:-}" ]; then
    printf '%s %s %s %s %s\n' "$(date '+%Y-%m-%dT%H:%M:%S%z')" "$host" "$$" "$key" "$fence" >>"$REPORT_LOG"
fi
