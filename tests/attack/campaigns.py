"""All campaigns, in the order in which they run."""

from attack import answers, bits, commands, edits, kills, messages, operations, readers, sites

CAMPAIGNS = (
    kills.CAMPAIGN,
    operations.CAMPAIGN,
    bits.CAMPAIGN,
    sites.CAMPAIGN,
    messages.CAMPAIGN,
    answers.CAMPAIGN,
    commands.CAMPAIGN,
    readers.CAMPAIGN,
    edits.CAMPAIGN,
)
