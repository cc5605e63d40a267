/* SPDX-License-Identifier: MIT */
/*
 * util/fork.h - descriptors that a child of fork(2) does not keep
 *
 * A child that never calls execve(2), as the workers of a data loader, would hold claims, locks and
 * rings when its parent has closed them or is dead. So descriptors in this list are closed in the
 * child before fork(2) returns there. It is the only state of the library beside its handles.
 */
#ifndef SPW_UTIL_FORK_H
#define SPW_UTIL_FORK_H

/* No thread forks before spw_fork_release(). Nests. */
void spw_fork_hold(void);
void spw_fork_release(void);

/* From any thread. Return: 0; -ENOMEM, with words: then the descriptor is not in the list. */
int spw_fork_add(int fd);

/* Take a descriptor out of the list, if it is there, and close it; -1 is ignored. */
void spw_fork_close(int fd);

/* Take a descriptor out of the list, because the caller closes it by other means. */
void spw_fork_remove(int fd);

#endif
