/* SPDX-License-Identifier: MIT */
/*
 * util/histogram.h - summaries and log-linear histograms of latencies
 *
 * Every power of two has 64 buckets, those of fio: a percentile is off by less than one part in 64.
 * Values above 2^40 (18 minutes in ns) share the last bucket. Only one thread may use a histogram:
 * give each thread its own and merge them.
 */
#ifndef SPW_HISTOGRAM_H
#define SPW_HISTOGRAM_H

#include <stdint.h>

#define SPW_HISTOGRAM_SUB_BITS    6
#define SPW_HISTOGRAM_SUB_BUCKETS (1u << SPW_HISTOGRAM_SUB_BITS)
#define SPW_HISTOGRAM_VALUE_BITS  40
#define SPW_HISTOGRAM_BUCKETS \
	((SPW_HISTOGRAM_VALUE_BITS - SPW_HISTOGRAM_SUB_BITS + 1) * SPW_HISTOGRAM_SUB_BUCKETS)

struct spw_summary {
	uint64_t count, sum;
	uint64_t min, max; /* 0 while count is 0 */
	double square_sum;
};

struct spw_histogram {
	struct spw_summary summary;
	uint64_t buckets[SPW_HISTOGRAM_BUCKETS];
};

static inline void spw_summary_add(struct spw_summary *summary, uint64_t value)
{
	if (summary->count == 0 || value < summary->min)
		summary->min = value;
	if (value > summary->max)
		summary->max = value;
	summary->count++;
	summary->sum += value;
	summary->square_sum += (double)value * (double)value;
}

void spw_summary_merge(struct spw_summary *to, const struct spw_summary *from);
double spw_summary_mean(const struct spw_summary *summary);
/* sample standard deviation: divided by count - 1 */
double spw_summary_deviation(const struct spw_summary *summary);

static inline unsigned spw_histogram_bucket(uint64_t value)
{
	unsigned shift, bucket;

	if (value < 2 * SPW_HISTOGRAM_SUB_BUCKETS)
		return (unsigned)value;
	shift = 63u - (unsigned)__builtin_clzll(value) - SPW_HISTOGRAM_SUB_BITS;
	bucket = (shift + 1) * SPW_HISTOGRAM_SUB_BUCKETS +
		 ((unsigned)(value >> shift) & (SPW_HISTOGRAM_SUB_BUCKETS - 1));
	return bucket < SPW_HISTOGRAM_BUCKETS ? bucket : SPW_HISTOGRAM_BUCKETS - 1;
}

/* The value that stands for all values of a bucket: its middle. */
uint64_t spw_histogram_bucket_value(unsigned bucket);

static inline void spw_histogram_add(struct spw_histogram *histogram, uint64_t value)
{
	spw_summary_add(&histogram->summary, value);
	histogram->buckets[spw_histogram_bucket(value)]++;
}

void spw_histogram_merge(struct spw_histogram *to, const struct spw_histogram *from);

/* The value that @percent of all values do not exceed; 0 when the histogram is empty. */
uint64_t spw_histogram_percentile(const struct spw_histogram *histogram, double percent);

#endif
