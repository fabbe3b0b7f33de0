// SPDX-License-Identifier: GPL-2.0
/*
 * A VFIO device of software alone that pins single pages of its user's memory, as
 * drivers of mediated devices do.  It takes no IOMMU, and its DMA is not coherent.
 * There is one, lab_pin, in an IOMMU group of its own.
 *
 * Its file has two parts:
 *	0	8 bytes: written, the address (IOVA) whose page is to be pinned instead
 *		of the one before, or ~0 for none; read, the frame that is pinned, or ~0
 *	4096	4096 bytes: the page, read and written at the place it is pinned at
 *
 * For tests only.
 */
#include <linux/highmem.h>
#include <linux/iommu.h>
#include <linux/module.h>
#include <linux/mutex.h>
#include <linux/platform_device.h>
#include <linux/uaccess.h>
#include <linux/vfio.h>

#define NOWHERE		(~0ull)

struct lab_pin {
	struct vfio_device vfio;
	/* Protects what follows. */
	struct mutex lock;
	struct page *page;
	u64 iova;
};

static struct platform_device *parent;
static struct lab_pin *the_device;

static struct lab_pin *to_lab_pin(struct vfio_device *vfio)
{
	return container_of(vfio, struct lab_pin, vfio);
}

static void unpin(struct lab_pin *pin)
{
	if (pin->page)
		vfio_unpin_pages(&pin->vfio, pin->iova, 1);
	pin->page = NULL;
	pin->iova = NOWHERE;
}

static int pin_page(struct lab_pin *pin, u64 iova)
{
	int r;

	unpin(pin);
	if (iova == NOWHERE)
		return 0;

	r = vfio_pin_pages(&pin->vfio, iova, 1, IOMMU_READ | IOMMU_WRITE, &pin->page);
	if (r != 1) {
		pin->page = NULL;
		return r < 0 ? r : -EFAULT;
	}

	pin->iova = iova;
	return 0;
}

/* Copy between the page and the user; only what is wholly in it. */
static ssize_t copy(struct lab_pin *pin, char __user *buf, size_t count, loff_t pos,
		    bool write)
{
	unsigned long left;
	char *mapped;

	if (!pin->page)
		return -ENXIO;
	if (pos < PAGE_SIZE || pos > 2 * PAGE_SIZE || count > 2 * PAGE_SIZE - pos)
		return -EINVAL;

	mapped = kmap_local_page(pin->page) + pos - PAGE_SIZE;
	left = write ? copy_from_user(mapped, buf, count) : copy_to_user(buf, mapped, count);
	kunmap_local(mapped);
	return left ? -EFAULT : count;
}

static ssize_t lab_pin_read(struct vfio_device *vfio, char __user *buf, size_t count,
			    loff_t *ppos)
{
	struct lab_pin *pin = to_lab_pin(vfio);
	u64 frame;

	guard(mutex)(&pin->lock);

	if (*ppos || count != sizeof(frame))
		return copy(pin, buf, count, *ppos, false);

	frame = pin->page ? page_to_pfn(pin->page) : NOWHERE;
	return copy_to_user(buf, &frame, count) ? -EFAULT : count;
}

static ssize_t lab_pin_write(struct vfio_device *vfio, const char __user *buf, size_t count,
			     loff_t *ppos)
{
	struct lab_pin *pin = to_lab_pin(vfio);
	u64 iova;

	guard(mutex)(&pin->lock);

	if (*ppos || count != sizeof(iova))
		return copy(pin, (char __user *)buf, count, *ppos, true);

	if (copy_from_user(&iova, buf, count))
		return -EFAULT;

	return pin_page(pin, iova) ?: count;
}

static void lab_pin_dma_unmap(struct vfio_device *vfio, u64 iova, u64 length)
{
	struct lab_pin *pin = to_lab_pin(vfio);

	guard(mutex)(&pin->lock);

	if (pin->page && pin->iova >= iova && pin->iova - iova < length)
		unpin(pin);
}

static int lab_pin_open(struct vfio_device *vfio)
{
	return 0;
}

static void lab_pin_close(struct vfio_device *vfio)
{
	struct lab_pin *pin = to_lab_pin(vfio);

	guard(mutex)(&pin->lock);

	unpin(pin);
}

static int lab_pin_setup(struct vfio_device *vfio)
{
	struct lab_pin *pin = to_lab_pin(vfio);

	mutex_init(&pin->lock);
	pin->iova = NOWHERE;
	return 0;
}

static const struct vfio_device_ops ops = {
	.name = "lab_pin",
	.init = lab_pin_setup,
	.open_device = lab_pin_open,
	.close_device = lab_pin_close,
	.read = lab_pin_read,
	.write = lab_pin_write,
	.dma_unmap = lab_pin_dma_unmap,
	.bind_iommufd = vfio_iommufd_emulated_bind,
	.unbind_iommufd = vfio_iommufd_emulated_unbind,
	.attach_ioas = vfio_iommufd_emulated_attach_ioas,
	.detach_ioas = vfio_iommufd_emulated_detach_ioas,
};

static int lab_pin_probe(struct platform_device *platform)
{
	int r;

	the_device = vfio_alloc_device(lab_pin, vfio, &platform->dev, &ops);
	if (IS_ERR(the_device))
		return PTR_ERR(the_device);

	r = vfio_register_emulated_iommu_dev(&the_device->vfio);
	if (r)
		vfio_put_device(&the_device->vfio);
	return r;
}

static void lab_pin_remove(struct platform_device *platform)
{
	vfio_unregister_group_dev(&the_device->vfio);
	vfio_put_device(&the_device->vfio);
}

/* Whoever opens the device has VFIO hold the module of its driver: it must have one. */
static struct platform_driver driver = {
	.driver.name = "lab_pin",
	.remove = lab_pin_remove,
};

static int __init lab_pin_init(void)
{
	parent = platform_create_bundle(&driver, lab_pin_probe, NULL, 0, NULL, 0);
	return PTR_ERR_OR_ZERO(parent);
}
module_init(lab_pin_init);

static void __exit lab_pin_exit(void)
{
	platform_device_unregister(parent);
	platform_driver_unregister(&driver);
}
module_exit(lab_pin_exit);

MODULE_DESCRIPTION("A VFIO device of software that pins single pages");
MODULE_LICENSE("GPL");
