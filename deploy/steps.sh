# Sourced by the scripts: runs a step with its output in a log and one progress line on the terminal.
#
#   steps_begin NAME COUNT          the script's name and its number of steps
#   step TITLE CURE COMMAND...      runs the command; if it fails, prints the end of its log, where the log lies and CURE,
#                                   and ends the script with the command's exit status
# Logs lie in $STEPS_LOGS (default: a new folder below /tmp); $STEP_LOG is the last step's.

steps_begin() {
  STEPS_NAME=$1
  STEPS_COUNT=$2
  STEPS_NUMBER=0
  STEPS_LOGS=${STEPS_LOGS:-$(mktemp -d "/tmp/$1.XXXXXX")}
}

step() {
  local title=$1 cure=$2 began=$SECONDS status=0 pid
  shift 2
  STEPS_NUMBER=$((STEPS_NUMBER + 1))
  STEP_LOG=$STEPS_LOGS/$STEPS_NUMBER.log
  local head="[$STEPS_NUMBER/$STEPS_COUNT] $title"
  [ -t 1 ] || echo "$head ..."
  "$@" > "$STEP_LOG" 2>&1 < /dev/null &
  pid=$!
  # A script that is interrupted takes its step with it.
  trap 'kill '"$pid"' 2> /dev/null; exit 130' INT TERM
  step_progress "$pid" "$head" "$STEP_LOG" "$began"
  wait "$pid" || status=$?
  trap - INT TERM
  [ ! -t 1 ] || printf '\r\033[K'
  if [ "$status" -ne 0 ]; then
    echo "$head: FAILED with exit status $status after $((SECONDS - began)) s. The end of its log:"
    tail -n 60 "$STEP_LOG" | sed 's/^/    /'
    echo "$STEPS_NAME: stopped at '$title'. The whole log: $STEP_LOG"
    [ -z "$cure" ] || echo "$STEPS_NAME: $cure"
    exit "$status"
  fi
  echo "$head: done in $((SECONDS - began)) s"
}

# Shows the log's last line until `pid` ends: in place on a terminal, now and then elsewhere.
step_progress() {
  local pid=$1 head=$2 log=$3 began=$4 said=$SECONDS last
  # The first tenths of a second are watched closely, so that a step with nothing to do costs nothing.
  for _ in 1 2 3 4 5 6 7 8 9 10; do
    kill -0 "$pid" 2> /dev/null || return 0
    sleep 0.05
  done
  while kill -0 "$pid" 2> /dev/null; do
    last=$(tail -c 400 "$log" | tr '\r' '\n' | grep -v '^ *$' | tail -n 1 | cut -c1-90) || last=
    if [ -t 1 ]; then
      printf '\r\033[K%s  %d s  %s' "$head" $((SECONDS - began)) "$last"
    elif [ $((SECONDS - said)) -ge 20 ]; then
      echo "    $((SECONDS - began)) s  $last"
      said=$SECONDS
    fi
    sleep 0.3
  done
}
