/* SPDX-License-Identifier: GPL-2.0-or-later */
#include "rm-channel.h"

#include <string.h>

static const char *const tier_names[RM_TIER_N] = {
	[RM_TIER_DIMM] = "dimm",
	[RM_TIER_CXL] = "cxl",
};

const char *
rm_tier_name(RmTier tier)
{
	g_return_val_if_fail((guint)tier < RM_TIER_N, "?");
	return tier_names[tier];
}

gboolean
rm_tier_parse(const char *text, RmTier *ret_tier)
{
	guint i;

	for (i = 0; i < RM_TIER_N; i++) {
		if (g_str_equal(text, tier_names[i])) {
			*ret_tier = (RmTier)i;
			return TRUE;
		}
	}
	return FALSE;
}

gboolean
rm_channel_name_valid(const char *name)
{
	const char *p;

	if (!g_ascii_isalpha(name[0]) || strlen(name) > RM_CHANNEL_NAME_MAX)
		return FALSE;
	for (p = name; *p; p++) {
		if (!g_ascii_isalnum(*p) && !strchr("-_.", *p))
			return FALSE;
	}
	return TRUE;
}

void
rm_channel_free(RmChannel *channel)
{
	if (!channel)
		return;
	g_free(channel->name);
	g_free(channel->store);
	g_free(channel);
}
