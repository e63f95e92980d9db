# The module is built against the sources of the driver.
until [ -d /run/nvidia/driver/usr/src ] && [ -d /sys/module/nvidia ]; do
    echo "waiting for the driver"
    sleep 10
done
