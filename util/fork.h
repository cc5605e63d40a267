/* SPDX-License-Identifier: MIT */
/*
 * util/fork.h - descriptors that a child of fork(2) does not keep
 *
 * A child that never calls execve(2), such as a data loader's worker, would keep claims, locks and
 * rings after its parent has closed them or died. So the descriptors in this list are closed in the
 * child before fork(2) returns there. The list is the library's only state outside its handles.
 */
#ifndef SPW_UTIL_FORK_H
#define SPW_UTIL_FORK_H

/* Block fork(2) in all threads until spw_fork_release(). Calls may nest. */
void spw_fork_hold(void);
void spw_fork_release(void);

/* Add a descriptor. Any thread. Return: 0; -ENOMEM, with a message: it is not in the list. */
int spw_fork_add(int fd);

/* Take a descriptor out of the list, if it is there, and close it; -1 is ignored. */
void spw_fork_close(int fd);

/* Take a descriptor out of the list, because the caller closes it by other means. */
void spw_fork_remove(int fd);

#endif
