"""All campaigns, in the order in which they run."""

from attack import kills, operations

CAMPAIGNS = (kills.CAMPAIGN, operations.CAMPAIGN)
