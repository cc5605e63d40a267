/* SPDX-License-Identifier: MIT */
/* util/histogram.c - merging histograms, and reading percentiles from them */
#include "util/histogram.h"

#include <math.h>

void spw_summary_merge(struct spw_summary *to, const struct spw_summary *from)
{
	if (from->count == 0)
		return;
	if (to->count == 0 || from->min < to->min)
		to->min = from->min;
	if (from->max > to->max)
		to->max = from->max;
	to->count += from->count;
	to->sum += from->sum;
	to->square_sum += from->square_sum;
}

double spw_summary_mean(const struct spw_summary *summary)
{
	return summary->count == 0 ? 0 : (double)summary->sum / (double)summary->count;
}

double spw_summary_deviation(const struct spw_summary *summary)
{
	double mean = spw_summary_mean(summary);
	double squares;

	if (summary->count < 2)
		return 0;
	squares = summary->square_sum - mean * (double)summary->sum;
	/* Rounding can make the sum slightly negative when all values are equal. */
	return squares > 0 ? sqrt(squares / (double)(summary->count - 1)) : 0;
}

uint64_t spw_histogram_bucket_value(unsigned bucket)
{
	unsigned shift;
	uint64_t lowest;

	if (bucket < 2 * SPW_HISTOGRAM_SUB_BUCKETS)
		return bucket;
	shift = bucket / SPW_HISTOGRAM_SUB_BUCKETS - 1;
	lowest = (uint64_t)(SPW_HISTOGRAM_SUB_BUCKETS + bucket % SPW_HISTOGRAM_SUB_BUCKETS)
		 << shift;
	return lowest + (UINT64_C(1) << shift) / 2;
}

void spw_histogram_merge(struct spw_histogram *to, const struct spw_histogram *from)
{
	spw_summary_merge(&to->summary, &from->summary);
	for (unsigned i = 0; i < SPW_HISTOGRAM_BUCKETS; i++)
		to->buckets[i] += from->buckets[i];
}

uint64_t spw_histogram_percentile(const struct spw_histogram *histogram, double percent)
{
	double wanted = (double)histogram->summary.count * percent / 100.0;
	uint64_t seen = 0;

	for (unsigned i = 0; i < SPW_HISTOGRAM_BUCKETS; i++) {
		seen += histogram->buckets[i];
		if (seen > 0 && (double)seen >= wanted)
			return spw_histogram_bucket_value(i);
	}
	return 0;
}
