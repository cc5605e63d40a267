/* SPDX-License-Identifier: MIT */
/*
 * drives/vfio/bind.c - spw_vfio_bind(), spw_vfio_unbind(): move an NVMe controller between the
 * kernel's driver and vfio-pci
 *
 *   BIND-1  Nothing is changed before every namespace is claimed: not mounted, claimed or swapped
 *           on, opened exclusively, all bytes locked, and no store open on a partition of it. The
 *           claims are held until the kernel's driver has released the controller, so that it
 *           cannot be mounted in between. opts.force does not change that.
 *   BIND-2  After a failure the former driver_override and driver are restored, if the kernel
 *           succeeds.
 *   BIND-3  A controller that a process drives is not unbound: the kernel would wait for that
 *           process indefinitely.
 */
#include "drives/vfio/bind.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <spillway/format.h>

#include "drives/contents.h"
#include "drives/safety.h"
#include "util/util.h"

/* ---- Claims ---- */

struct claims {
	struct spw_device **devices;
	unsigned count;
	bool force;
	const struct spw_log *log;
};

static int claim(struct claims *claims, const char *node, struct spw_device **device)
{
	struct spw_contents contents;
	int rc = spw_claim(node, claims->log, device);

	if (rc == 0)
		rc = spw_drives__contents_read(*device, &contents);
	if (rc != 0 || !contents.foreign)
		return rc;
	if (!claims->force)
		return spw_error(-EEXIST,
				 "%s: carries %s; use --force to bind its controller all the same "
				 "(what it carries stays, out of reach), or name another",
				 node, contents.text);
	spw_log(claims->log, SPW_LOG_WARNING, "%s: its controller is bound although it carries %s",
		node, contents.text);
	return 0;
}

static int claim_namespace(void *context, const char *node)
{
	struct claims *claims = context;
	struct spw_device **larger =
		reallocarray(claims->devices, claims->count + 1, sizeof(struct spw_device *));

	if (!larger)
		return spw_error(-ENOMEM, "%s: no memory to claim it", node);
	claims->devices = larger;
	larger[claims->count] = NULL;
	claims->count++;
	return claim(claims, node, &larger[claims->count - 1]);
}

static void release(struct claims *claims)
{
	for (unsigned i = 0; i < claims->count; i++)
		spw_device_close(claims->devices[i]);
	free(claims->devices);
}

/* ---- Drivers ---- */

struct former {
	char driver[32];
	char override[64]; /* "(null)": not set */
};

static void read_driver(const struct spw_vfio_system *system, const char *address, char driver[32])
{
	(void)spw_vfio__read_link(system, address, "driver", driver, 32);
}

static void read_former(const struct spw_vfio_system *system, const char *address,
			struct former *former)
{
	read_driver(system, address, former->driver);
	(void)spw_read_text(SPW_VFIO_FILE(system, address, "driver_override"), former->override,
			    sizeof(former->override));
}

static int write_file(const struct spw_vfio_system *system, const char *path, const char *text)
{
	int rc = system->write(path, text);

	return rc ? spw_error_errno(rc, "%s cannot be set%s", path,
				    rc == -EACCES || rc == -EPERM ? " (run as root)" : "")
		  : 0;
}

static int set_override(const struct spw_vfio_system *system, const char *address,
			const char *driver)
{
	return write_file(system, SPW_VFIO_FILE(system, address, "driver_override"),
			  driver[0] && strcmp(driver, "(null)") != 0 ? driver : "\n");
}

/*
 * Unbind the controller from its driver, if any; have the kernel probe again. @driver: the result.
 */
static int change_driver(const struct spw_vfio_system *system, const char *address, char driver[32])
{
	int rc = 0;

	read_driver(system, address, driver);
	if (driver[0])
		rc = write_file(system, SPW_VFIO_FILE(system, address, "driver/unbind"), address);
	if (rc == 0)
		rc = write_file(system, SPW_PATH("%s/bus/pci/drivers_probe", system->sysfs),
				address);
	read_driver(system, address, driver);
	return rc;
}

/* Restore driver and override (BIND-2). Keeps spw_last_error() of the failure. */
static void restore(const struct spw_vfio_system *system, const char *address,
		    const struct former *former, const struct spw_log *log)
{
	char words[512], driver[32];
	int cleared, rc = 0;

	(void)snprintf(words, sizeof(words), "%s", spw_last_error());
	cleared = set_override(system, address, former->override);
	read_driver(system, address, driver);
	if (strcmp(driver, former->driver) != 0)
		rc = change_driver(system, address, driver);
	if (strcmp(driver, former->driver) != 0)
		spw_log(log, SPW_LOG_ERROR,
			"%s: could not be returned to %s%s%s; echo > "
			"%s/bus/pci/devices/%s/driver_override; echo %s > %s/bus/pci/drivers_probe",
			address, former->driver[0] ? former->driver : "no driver", rc ? ": " : "",
			rc ? spw_last_error() : "", system->sysfs, address, address, system->sysfs);
	else if (cleared)
		spw_log(log, SPW_LOG_WARNING,
			"%s: is with %s as before, but its driver_override could not be set back: "
			"see to it with spillway unbind",
			address, driver[0] ? driver : "no driver");
	else
		spw_log(log, SPW_LOG_INFO, "%s: is again with %s", address,
			driver[0] ? driver : "no driver");
	(void)spw_error(-EIO, "%s", words);
}

static int hand_over(const struct spw_vfio_system *system, const char *address,
		     const struct spw_log *log)
{
	struct former former;
	char driver[32];
	int rc;

	if (access(SPW_PATH("%s/bus/pci/drivers/%s", system->sysfs, spw_vfio__driver), F_OK) != 0)
		return spw_error(
			-ENOENT,
			"%s: the kernel's vfio-pci driver is not loaded; modprobe vfio-pci",
			address);
	read_former(system, address, &former);
	rc = set_override(system, address, spw_vfio__driver);
	if (rc == 0)
		rc = change_driver(system, address, driver);
	if (rc == 0 && strcmp(driver, spw_vfio__driver) != 0)
		rc = spw_error(-EIO,
			       "%s: the kernel does not give it to vfio-pci; its log says why "
			       "(dmesg)",
			       address);
	if (rc)
		restore(system, address, &former, log);
	else
		spw_log(log, SPW_LOG_INFO, "%s: taken from %s, given to vfio-pci", address,
			former.driver[0] ? former.driver : "no driver");
	return rc;
}

/* ---- Bind ---- */

void spw_vfio_bind_opts_init(struct spw_vfio_bind_opts *opts, size_t size)
{
	struct spw_vfio_bind_opts defaults = {.size = sizeof(defaults)};

	spw_opts_merge(opts, size, &defaults, sizeof(defaults));
}

int spw_drives__vfio_bind_in(const struct spw_vfio_system *system, const char *address,
			     const struct spw_vfio_bind_opts *user)
{
	struct spw_vfio_bind_opts opts = {0};
	struct spw_vfio_probe_info controller;
	struct claims claims = {.log = &opts.log};
	int rc;

	spw_vfio_bind_opts_init(&opts, sizeof(opts));
	if (user)
		spw_opts_merge(&opts, sizeof(opts), user, user->size);
	claims.force = opts.force;
	rc = spw_vfio__identify(system, address, &controller);
	if (rc == 0 && opts.alone)
		rc = spw_drives__vfio_verify_alone(system, &controller);
	if (rc || strcmp(controller.driver, spw_vfio__driver) == 0)
		return rc;
	rc = spw_drives__vfio_find_obstacles(system, &controller);
	if (rc == 0) /* claim all namespaces first (BIND-1) */
		rc = spw_vfio__each_node(system, controller.address, claim_namespace, &claims);
	if (rc == 0)
		rc = spw_drives__vfio_verify_shown(&controller);
	if (rc == 0 && !opts.dry_run)
		rc = hand_over(system, controller.address, &opts.log);
	release(&claims);
	return rc;
}

int spw_vfio_bind(const char *address, const struct spw_vfio_bind_opts *opts)
{
	return spw_drives__vfio_bind_in(&spw_vfio__here, address, opts);
}

/* ---- Unbind ---- */

/* Check that no process drives the controller (BIND-3). */
static int verify_idle(const struct spw_vfio_system *system,
		       const struct spw_vfio_probe_info *controller)
{
	const char *path = SPW_PATH("%s/vfio/%d", system->dev, controller->iommu_group);
	char holder[64];
	int fd;

	if (spw_drives__safety_controller_opener(system, controller->address, holder,
						 sizeof(holder)))
		return spw_error(-EBUSY, "%s: %s drives it; end that first", controller->address,
				 holder);
	/* Processes of other containers are not in /proc: see whether the group can be opened. */
	fd = open(path, O_RDWR | O_CLOEXEC);
	if (fd < 0 && errno == EBUSY)
		return spw_error(-EBUSY,
				 "%s: a process drives it, by %s; end that first (see fuser %s)",
				 controller->address, path, path);
	if (fd >= 0)
		(void)close(fd);
	return 0;
}

int spw_drives__vfio_unbind_in(const struct spw_vfio_system *system, const char *address,
			       const struct spw_log *log)
{
	struct spw_vfio_probe_info controller;
	struct former former;
	char driver[32];
	int rc = spw_vfio__identify(system, address, &controller);

	if (rc)
		return rc;
	address = controller.address;
	read_former(system, address, &former);
	if (former.driver[0] && strcmp(former.driver, spw_vfio__driver) != 0) {
		/* It is not bound to vfio-pci: only remove an override that would bind it again. */
		if (strcmp(former.override, spw_vfio__driver) == 0)
			return set_override(system, address, "");
		return strcmp(former.driver, "nvme") == 0
			       ? 0
			       : spw_error(-EBUSY,
					   "%s: is driven by %s, not by vfio-pci; release it there",
					   address, former.driver);
	}
	rc = verify_idle(system, &controller);
	if (rc == 0)
		rc = set_override(system, address, "");
	if (rc)
		return rc;
	rc = change_driver(system, address, driver);
	if (rc)
		restore(system, address, &former, log);
	else if (!driver[0] || strcmp(driver, spw_vfio__driver) == 0)
		rc = spw_error(-ENODEV,
			       "%s: no driver of the kernel takes it; modprobe nvme, then echo %s "
			       "> %s/bus/pci/drivers_probe",
			       address, address, system->sysfs);
	else
		spw_log(log, SPW_LOG_INFO, "%s: taken from vfio-pci, given to %s", address, driver);
	return rc;
}

int spw_vfio_unbind(const char *address, const struct spw_log *log)
{
	return spw_drives__vfio_unbind_in(&spw_vfio__here, address, log);
}
