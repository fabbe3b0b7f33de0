/* SPDX-License-Identifier: GPL-2.0 */
/*
 * Comes before each file of KVM's selftests. Some of them end themselves by an alarm, after a
 * second to ten without what they wait for. Emulated CPUs that share the host's with others
 * may need longer.
 */
#ifndef __ASSEMBLER__
#include <unistd.h>

#define alarm(seconds) alarm(10 * (seconds))
#endif
