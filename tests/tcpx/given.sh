# SPDX-License-Identifier: Apache-2.0
# Sourced by the scripts of make check-tcpx. They test the plugin that TARN_TCPX_PLUGIN names.
build=$(cd "${TARN_BUILD:-build}" && pwd)
export TARN_BUILD="$build"
[ -n "${TARN_TCPX_PLUGIN:-}" ] || { echo "SKIP: tcpx-plugin: TARN_TCPX_PLUGIN names none"; exit 77; }
case $TARN_TCPX_PLUGIN in
/*) ;;
*/*) TARN_TCPX_PLUGIN=$PWD/$TARN_TCPX_PLUGIN ;;
esac
export TARN_TCPX_PLUGIN
