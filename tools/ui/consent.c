/* SPDX-License-Identifier: MIT */
/* tools/ui/consent.c - ask on the terminal before unknown data on a drive is lost */
#include "tools/ui/tool.h"

#include <errno.h>
#include <unistd.h>

int tool_consent(const struct tool_command *command, const char *path, bool *erase, bool json)
{
	struct spw_probe_info info = {.size = sizeof(info)};

	if (*erase || !isatty(STDERR_FILENO) || !isatty(STDIN_FILENO) ||
	    spw_probe(path, &info) != 0 || !info.unknown_data || info.error != -EEXIST)
		return TOOL_DONE;
	(void)fprintf(stderr, "%s\n", info.reason);
	*erase = tool_ask("Erase it? [y/N] ", "y");
	return *erase ? TOOL_DONE : tool_refuse(command, "nothing was written", json);
}
