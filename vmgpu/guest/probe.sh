# Says what a guest shows of itself, in parts that facts.py reads. Changes nothing. Sent over SSH to `sh -s`.
# $1 seconds to wait for cloud-init, $2 what stands for the card (none, emulated, pci, nvidia), $3 yes tries CUDA,
# $4 a root other than /, for tests.
# Builtins where they suffice: under emulation every program that is started costs.
root=${4-}

part() { printf '\n=== vmgpu %s\n' "$1"; }

uptime_seconds() { read -r now _ </proc/uptime; now=${now%%.*}; }

cloud_init() {
  run=$root/run/cloud-init
  if ! [ -e "$run/status.json" ] && ! [ -e "$run/result.json" ] && ! command -v cloud-init >/dev/null; then part absent; return; fi
  if [ -e "$run/disabled" ] || [ -e "$root/etc/cloud/cloud-init.disabled" ]; then part disabled; return; fi
  uptime_seconds
  end=$((now + $1)) look=$((now + 30))
  # The program `cloud-init status --wait` is Python and asks four times a second; its answer comes from these files.
  until [ -e "$run/result.json" ]; do
    uptime_seconds
    if [ "$now" -ge "$end" ]; then unfinished; return; fi
    if [ "$now" -ge "$look" ]; then look=$((now + 30)); if failed_units; then return; fi; fi
    sleep 1
  done
  part result; cat "$run/result.json"
  part status; cat "$run/status.json"
}

failed_units() {
  units=$(systemctl list-units --failed --plain --no-legend 'cloud-*' 2>/dev/null) || return 1
  [ -n "$units" ] || return 1
  part failed; echo "$units"
}

unfinished() {
  if failed_units; then return; fi
  if [ -e "$run/status.json" ]; then part running; return; fi
  said=$(cloud-init status --format json 2>/dev/null </dev/null); code=$?
  # Before 22.4 there is no JSON: a usage error, nothing on stdout.
  if [ -z "$said" ]; then said=$(cloud-init status --long 2>/dev/null </dev/null); code=$?; fi
  part code; echo "$code"
  part program; echo "$said"
}

pci() {
  part pci
  for device in "$root"/sys/bus/pci/devices/*; do
    [ -r "$device/vendor" ] || continue
    read -r vendor <"$device/vendor"; read -r id <"$device/device"; read -r class <"$device/class"
    echo "device ${device##*/} $vendor $id $class"
    bar=0
    while [ $bar -lt 6 ] && read -r range; do echo "bar $bar $range"; bar=$((bar + 1)); done <"$device/resource"
  done
}

dmi() {
  table=$root/sys/firmware/dmi/tables/DMI
  part dmi
  if [ -r "$table" ]; then cat "$table"; else sudo -n cat "$table" </dev/null; fi | od -An -v -tx1
}

nvidia() {
  command -v nvidia-smi >/dev/null || return 0
  part nvidia
  timeout 60 nvidia-smi --query-gpu=memory.total,name --format=csv,noheader 2>&1 </dev/null
  code=$?
  part nvidia-code; echo "$code"
}

cuda() {
  part cuda
  timeout 60 python3 - 2>&1 <<'PYTHON' || echo "exit $?"
import ctypes as c
try:
    cuda = c.CDLL("libcuda.so.1")
except OSError as error:
    raise SystemExit(str(error))
def call(name, *arguments):
    code = getattr(cuda, name)(*arguments)
    if code:
        text = c.c_char_p()
        cuda.cuGetErrorName(code, c.byref(text))
        raise SystemExit(f"{name}: {(text.value or b'error').decode()} ({code})")
call("cuInit", 0)
count = c.c_int()
call("cuDeviceGetCount", c.byref(count))
for number in range(count.value):
    device, context, place, back = c.c_int(), c.c_void_p(), c.c_uint64(), (c.c_uint32 * 4)()
    call("cuDeviceGet", c.byref(device), number)
    call("cuDevicePrimaryCtxRetain", c.byref(context), device)
    call("cuCtxSetCurrent", context)
    call("cuMemAlloc_v2", c.byref(place), c.c_size_t(4 << 20))
    call("cuMemsetD32_v2", place, c.c_uint32(0xC0FFEE), c.c_size_t(1 << 20))
    call("cuMemcpyDtoH_v2", back, c.c_uint64(place.value + (4 << 20) - 16), c.c_size_t(16))
    call("cuMemFree_v2", place)
    call("cuDevicePrimaryCtxRelease_v2", device)
    if list(back) != [0xC0FFEE] * 4:
        raise SystemExit(f"device {number} did not keep what was written to its memory")
print("works on", count.value) if count.value else print("no CUDA device")
PYTHON
}

main() {
  cloud_init "$1"
  case $2 in
    emulated) pci; dmi ;;
    pci) pci ;;
    nvidia) pci; nvidia ;;
  esac
  if [ "$3" = yes ]; then cuda; fi
  part end
}

# In a function, so that all of this text has been read before anything else can read stdin.
LC_ALL=C; export LC_ALL
main "$@" 2>/dev/null
exit 0
