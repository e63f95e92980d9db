
# The file has just appeared: give the device nodes that its writer makes a moment.
sleep 5
exec nvidia-toolkit "$@"
