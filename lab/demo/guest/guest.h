/* What the programs that are the whole user space of a guest have in common. */
#ifndef LAB_GUEST_H
#define LAB_GUEST_H

#include <errno.h>
#include <fcntl.h>
#include <glob.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>
#include <sys/mount.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#define PAGE		4096
#define WORDS		(PAGE / 8)
#define PCI_COMMAND	4
#define PCI_MEMORY	2	/* in it: answers to memory accesses */

static inline void pause_for(long ns)
{
	const struct timespec pause = { .tv_sec = ns / 1000000000, .tv_nsec = ns % 1000000000 };

	nanosleep(&pause, NULL);
}

static inline void mount_all(void)
{
	mkdir("/sys", 0755);
	mkdir("/dev", 0755);
	mount("sysfs", "/sys", "sysfs", 0, NULL);
	mount("devtmpfs", "/dev", "devtmpfs", 0, NULL);
}

/* Load what is in /modules, in the order of their names; what fails is told as `who`'s. */
static inline void load_modules(const char *who)
{
	const int compressed = 4;	/* MODULE_INIT_COMPRESSED_FILE */
	glob_t found;

	if (glob("/modules/*", 0, NULL, &found))
		return;
	for (size_t i = 0; i < found.gl_pathc; i++) {
		int fd = open(found.gl_pathv[i], O_RDONLY | O_CLOEXEC);

		if (syscall(SYS_finit_module, fd, "", compressed) && errno != EEXIST)
			printf("%s: FAILED %s: %s\n", who, found.gl_pathv[i], strerror(errno));
		close(fd);
	}
	globfree(&found);
}

/* Returns the configuration space of the graphics adapter, or -1. */
static inline int open_adapter(void)
{
	const char *name = "boot_vga";
	char path[256];
	glob_t found;
	int fd = -1;

	if (!glob("/sys/bus/pci/devices/*/boot_vga", 0, NULL, &found)) {
		snprintf(path, sizeof(path), "%.*sconfig",
			 (int)(strlen(found.gl_pathv[0]) - strlen(name)), found.gl_pathv[0]);
		fd = open(path, O_RDWR);
	}
	globfree(&found);
	return fd;
}

/* Have the adapter's memory, for KVM a memslot, come or go; false if that can't be done. */
static inline int toggle_memory(int fd, uint16_t *command)
{
	*command ^= PCI_MEMORY;
	return pwrite(fd, command, 2, PCI_COMMAND) == 2;
}

#endif
