/*
 * Gives one process the uptime of a machine that booted at SLURM_EC2_LAB_BOOT_TIME (seconds since the epoch).
 *
 * All stand-in instances run on one host, and slurmd tells slurmctld its host's uptime. While a node is powering up,
 * slurmctld ignores a slurmd whose machine booted before the power-up was asked for, so each stand-in needs an uptime of
 * its own. Loaded with LD_PRELOAD; without the variable, or with one that is not a past time, the answer is the kernel's.
 */
#define _GNU_SOURCE
#include <errno.h>
#include <stdlib.h>
#include <sys/syscall.h>
#include <sys/sysinfo.h>
#include <time.h>
#include <unistd.h>

int sysinfo(struct sysinfo *info)
{
    int status = (int)syscall(SYS_sysinfo, info);
    const char *text = getenv("SLURM_EC2_LAB_BOOT_TIME");
    char *end = NULL;
    long long booted;
    time_t now;

    if (status != 0 || text == NULL || *text == '\0')
        return status;
    int saved = errno;
    booted = strtoll(text, &end, 10);
    now = time(NULL);
    errno = saved;
    if (*end == '\0' && booted > 0 && booted <= now)
        info->uptime = (long)(now - booted);
    return status;
}
