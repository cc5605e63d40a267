/* SPDX-License-Identifier: MIT */
/* store/copy.h - copy and checksum the bytes of vectors */
#ifndef SPW_STORE_COPY_H
#define SPW_STORE_COPY_H

#include <stddef.h>
#include <stdint.h>
#include <sys/uio.h>

uint64_t spw_store__copy_and_checksum(void *to, const void *from, size_t len);
/* Copy @len bytes of a vector, from @offset on, to or from contiguous memory; checksum them. */
void spw_store__gather(void *to, const struct iovec *vector, uint64_t offset, size_t len);
void spw_store__scatter(const struct iovec *vector, uint64_t offset, const void *from, size_t len);
uint64_t spw_store__checksum_vector(const struct iovec *vector, uint64_t offset, size_t len);
/* Address of @len contiguous bytes of a vector. Return: NULL: they are not contiguous. */
void *spw_store__run_of(const struct iovec *vector, uint64_t offset, size_t len);
/* Copy @len bytes from @offset on in @from to the beginning of @to. */
void spw_store__regather(const struct iovec *to, const struct iovec *from, uint64_t offset,
			 size_t len);

#endif
