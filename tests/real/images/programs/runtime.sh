#!/bin/sh
# What containerd starts in runc's place: adds the GPUs that a container asks for to its bundle, then is runc.
case " $* " in
*" create "*)
    if [ -e "@DRIVER_ROOT@/usr/bin/nvidia-smi" ]; then
        python3 -IS "@TOOLKIT@/nvidia-container-runtime.real" "@MODE@" "$@" || exit 1
    else
        echo "nvidia driver modules are not yet loaded, invoking runc directly" >&2
    fi
    ;;
esac
exec runc "$@"
