/* SPDX-License-Identifier: MIT */
/*
 * util/fork.h - descriptors that a child of fork(2) does not keep
 *
 * O_CLOEXEC ends with execve(2) what a child has inherited. A child that never calls it, as the
 * workers of a data loader do, would hold claims, locks and rings open after its parent has closed
 * them or was killed. Every descriptor in this list is closed in the child before fork(2) returns
 * there. This list is the only state of the library that belongs to the process and not to a
 * handle.
 */
#ifndef SPW_UTIL_FORK_H
#define SPW_UTIL_FORK_H

/*
 * From here to spw_fork_release() no thread forks: what is opened meanwhile reaches the list before
 * a child can inherit it. Nests.
 */
void spw_fork_hold(void);
void spw_fork_release(void);

/* From any thread. Return: 0; -ENOMEM, with words: then the descriptor is not in the list. */
int spw_fork_add(int fd);

/*
 * Take a descriptor out of the list and close it. One that is not in the list is closed all the
 * same; -1 is ignored.
 */
void spw_fork_close(int fd);

/* Take a descriptor out of the list that somebody else is going to close. */
void spw_fork_remove(int fd);

#endif
